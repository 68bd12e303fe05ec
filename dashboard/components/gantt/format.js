// Times, sizes and the words of the tooltip.

function threeDigits(value) {
  const size = Math.abs(value);
  return size >= 99.95 ? value.toFixed(0) : size >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

function formatDuration(us) {
  const size = Math.abs(us);
  if (size >= 120e6) return `${Math.floor(us / 60e6)} min ${Math.floor((us % 60e6) / 1e6)} s`;
  if (size >= 1e6) return `${threeDigits(us / 1e6)} s`;
  if (size >= 1e3) return `${threeDigits(us / 1e3)} ms`;
  return `${threeDigits(us)} µs`;
}

// A point on the axis, in the unit that suits the axis' end, with as many decimals as the distance of the ticks needs.
function formatTick(us, distance, end) {
  const unit = end >= 120e6 && distance >= 1e6 ? "min" : distance >= 1e5 || (end >= 1e6 && distance >= 1e3) ? "s" : "ms";
  if (unit === "min") return `${Math.floor(us / 60e6)}:${String(Math.floor((us % 60e6) / 1e6)).padStart(2, "0")} min`;
  const scale = unit === "s" ? 1e6 : 1e3;
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(distance / scale) - 1e-9)));
  return `${(us / scale).toFixed(digits)} ${unit}`;
}

function formatBytes(bytes) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (bytes < 1024) return unit === "B" ? `${bytes.toFixed(0)} B` : `${threeDigits(bytes)} ${unit}`;
    bytes /= 1024;
  }
  return `${threeDigits(bytes)} GiB`;
}

function barName(model, i) {
  const style = model.header.ops[model.bars.op[i]];
  const batch = model.bars.micro_batch[i];
  return batch < 0 ? style.label : style.letter ? `${style.label} ${style.letter}${batch}` : `${style.label}, micro-batch ${batch}`;
}

// Title and lines of the tooltip for a bar.
function describeBar(model, i) {
  const { header, bars } = model;
  const lane = header.lanes[bars.lane[i]];
  const start = header.origin_us + bars.start[i];
  if (bars.count[i] > 1) {
    return {
      title: `${bars.count[i]} ops, mostly ${header.ops[bars.op[i]].label}`,
      lines: [["rank", lane.rank], ["step", bars.step[i]], ["together", formatDuration(bars.length[i])], ["zoom in", "to see each"]],
    };
  }
  const edge = model.steps.find((s) => s.step === bars.step[i]);
  const lines = [["duration", formatDuration(bars.length[i])]];
  if (bars.stage[i] >= 0) lines.push(["stage", bars.stage[i]]);
  if (bars.micro_batch[i] >= 0) lines.push(["micro-batch", bars.micro_batch[i]]);
  lines.push(["rank", lane.rank]);
  if (bars.peer[i] >= 0) lines.push([header.ops[bars.op[i]].label.includes("receive") ? "from stage" : "to stage", bars.peer[i]]);
  if (bars.bytes[i] > 0) lines.push(["size", formatBytes(bars.bytes[i])]);
  lines.push(["step", bars.step[i]]);
  if (header.cuts.length) lines.push(["cuts", cutsIn(header, bars.step[i])]);
  if (edge) lines.push(["start", `${formatDuration(start - edge.from)} into the step`]);
  const phase = phaseAt(model, bars.lane[i], start + bars.length[i] / 2);
  if (phase) lines.push(["phase", phase]);
  return { title: barName(model, i), lines };
}

function describeLevel(model, kind, t) {
  const { title, unit, format } = LEVELS[kind];
  const curves = model.curves[kind];
  const lines = curves.slice(0, 12).map((curve) => {
    const value = levelAt(model, curve, t);
    return [model.header.lanes[curve.lane].label, Number.isNaN(value) ? "–" : format(value)];
  });
  if (curves.length > 12) lines.push(["and", `${curves.length - 12} more ranks`]);
  return { title: unit ? `${unit} ${title}` : title, lines };
}

// The bars in view as a table; a merged bar counts its ops and has no micro-batch of its own.
function barsAsText({ header, bars }, view) {
  const lines = ["rank,replica,stage,op,micro_batch,step,start_us,duration_us,bytes,ops"];
  for (let i = 0; i < bars.op.length; i++) {
    const start = header.origin_us + bars.start[i];
    if (start > view.to || start + bars.length[i] < view.from) continue;
    const { rank, replica } = header.lanes[bars.lane[i]];
    const numbers = [bars.micro_batch[i], bars.step[i], start.toFixed(1), bars.length[i].toFixed(1), bars.bytes[i], bars.count[i]];
    lines.push([rank, replica, bars.stage[i], `"${header.ops[bars.op[i]].label}"`, ...numbers].join(","));
  }
  return `${lines.join("\n")}\n`;
}

// The coloured bubble at time t of a lane, as its place in the gaps; -1: none.
function gapAt({ gaps, header }, lane, t) {
  const local = t - header.origin_us;
  for (let i = 0; i < gaps.lane.length; i++)
    if (gaps.lane[i] === lane && gaps.start[i] <= local && local <= gaps.start[i] + gaps.length[i]) return i;
  return -1;
}

function describeBubble(model, wants, lane, t, gap) {
  const lines = [["duration", formatDuration(gap.to - gap.from)], ["rank", model.header.lanes[lane].rank]];
  if (gap.step >= 0) lines.push(["step", gap.step]);
  if (gap.before >= 0) lines.push(["after", barName(model, gap.before)]);
  if (gap.after >= 0) lines.push(["before", barName(model, gap.after)]);
  const phase = phaseAt(model, lane, t);
  if (phase) lines.push(["phase", phase]);
  const i = gapsShown(model, wants) ? gapAt(model, lane, t) : -1;
  if (i >= 0) {
    const { label, word } = model.header.gap_kinds[model.gaps.kind[i]];
    lines.push([word ? "cause" : "mostly", `${label.replace("bubble: ", "")}, ${model.gaps.share[i]} %`]);
  }
  return { title: "bubble: could compute, does not", lines };
}
