// Drawing around the bars: axis, row labels, overview of all steps, arrows between stages, outlines of hover and selection.

function paintAxis({ ctx, model, view, layout, theme, plot, scale, x }) {
  const target = 110 / scale;
  const power = 10 ** Math.floor(Math.log10(target));
  const distance = [1, 2, 5, 10].map((m) => m * power).find((d) => d >= target);
  ctx.font = `11px ${theme.font}`;
  ctx.textBaseline = "alphabetic";
  ctx.textAlign = "center";
  ctx.lineWidth = 1;
  for (let k = Math.ceil(view.from / distance); k * distance <= view.to; k++) {
    const at = Math.round(x(k * distance)) + 0.5;
    ctx.strokeStyle = theme.line;
    ctx.beginPath();
    ctx.moveTo(at, layout.top - 5);
    ctx.lineTo(at, layout.top + layout.lanesHeight);
    ctx.stroke();
    const text = formatTick(k * distance, distance, view.to);
    const half = ctx.measureText(text).width / 2;
    if (at - half < plot.left - 2 || at + half > plot.right + 4) continue;
    ctx.fillStyle = theme.soft;
    ctx.fillText(text, at, layout.top - 8);
  }
  ctx.textAlign = "left";
  ctx.fillStyle = theme.soft;
  ctx.font = `11px ${theme.font}`;
  ctx.fillText(model.header.axis, 2, layout.top - 8);
}

function paintGutter({ ctx, model, layout, theme, marks }) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(0, layout.top - 4, GUTTER - 4, layout.lanesHeight + 8);
  ctx.clip();
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(13 / layout.row));
  model.header.lanes.forEach((lane, i) => {
    const g = geometry(layout, i, marks.scroll);
    if (g.top + layout.row < layout.top || g.top > layout.top + layout.lanesHeight || i % every) return;
    const middle = g.top + layout.row / 2;
    const two = layout.row >= 30;
    ctx.fillStyle = theme.text;
    ctx.font = `600 ${two ? 13 : Math.min(12, Math.max(9, layout.row * 0.7))}px ${theme.font}`;
    if (panelsOf(model, marks.wants).length && model.header.lanes.length <= 24) {
      ctx.fillStyle = laneColor(i, model.header.lanes.length); // whose curve is whose
      ctx.fillRect(GUTTER - 14, middle - Math.min(9, layout.row * 0.3), 4, 2 * Math.min(9, layout.row * 0.3));
      ctx.fillStyle = theme.text;
    }
    ctx.fillText(two ? lane.stage_label : `${lane.short} · r${lane.rank}`, 2, two ? middle - 8 : middle);
    if (!two) return;
    ctx.fillStyle = theme.soft;
    ctx.font = `11px ${theme.font}`;
    const whose = model.header.lanes.at(-1).replica ? `${lane.label}, replica ${lane.replica}` : lane.label;
    ctx.font = `${whose.length > 16 ? 10 : 11}px ${theme.font}`;
    ctx.fillText(lane.missing ? `${lane.label}: no data` : whose, 2, middle + 9);
  });
  ctx.restore();
  paintReplicas(ctx, model, layout, theme, marks);
}

// A line where the rows of the next replica begin.
function paintReplicas(ctx, model, layout, theme, marks) {
  ctx.fillStyle = theme.soft;
  model.header.lanes.forEach((lane, i) => {
    const { top } = geometry(layout, i, marks.scroll);
    if (!i || lane.replica === model.header.lanes[i - 1].replica || top < layout.top || top > layout.top + layout.lanesHeight) return;
    ctx.fillRect(0, Math.round(top), layout.width - EDGE, 1);
  });
}

function paintOverview({ ctx, model, view, layout, theme, plot }) {
  const { overview, extent, ops } = model.header;
  const span = Math.max(extent[1] - extent[0], 1);
  const x = (t) => plot.left + ((t - extent[0]) / span) * (plot.right - plot.left);
  const base = OVERVIEW - 6;
  ctx.fillStyle = theme.faint;
  ctx.fillRect(plot.left, 2, plot.right - plot.left, base - 2);
  const sorted = [...overview.length].sort((a, b) => a - b);
  const tall = (sorted[Math.floor(0.98 * (sorted.length - 1))] || 1) * 1.15;
  ctx.fillStyle = theme.dark ? "rgba(255,255,255,0.34)" : "rgba(0,0,0,0.28)";
  for (let i = 0; i < overview.start.length; i++) {
    const left = x(overview.start[i]);
    const width = Math.max(((overview.end[i] - overview.start[i]) / span) * (plot.right - plot.left) - 0.5, 0.5);
    const height = Math.min(overview.length[i] / tall, 1) * (base - 5);
    ctx.fillRect(left, base - height, width, height);
  }
  paintRecutsInOverview(ctx, model.header, theme, x, base);
  const from = Math.max(plot.left, x(view.from));
  const to = Math.min(plot.right, Math.max(x(view.to), from + 2));
  ctx.fillStyle = theme.dark ? "rgba(86,180,233,0.30)" : "rgba(0,114,178,0.20)";
  ctx.fillRect(from, 2, to - from, base - 2);
  ctx.strokeStyle = theme.dark ? "#56b4e9" : ops[0].color;
  ctx.lineWidth = 1.5;
  ctx.strokeRect(from + 0.5, 2.5, Math.max(to - from - 1, 1), base - 3);
  ctx.fillStyle = theme.soft;
  ctx.font = `11px ${theme.font}`;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  ctx.fillText("all steps", 2, base / 2 - 4);
  ctx.fillText("(height: time)", 2, base / 2 + 9);
}

// From each forward to the next stage's forward, and from each backward to the previous stage's; of the selected micro-batch, if one is.
function paintArrows({ ctx, model, layout, theme, marks, x, plot }) {
  const { bars, header } = model;
  const at = new Map();
  const backward = new Set([1, 2]);
  for (let i = 0; i < bars.op.length && at.size < 20000; i++) {
    if (marks.micro_batch >= 0 && (bars.micro_batch[i] !== marks.micro_batch || bars.step[i] !== marks.step)) continue;
    if (bars.count[i] === 1 && (bars.op[i] === 0 || backward.has(bars.op[i])))
      at.set(`${header.lanes[bars.lane[i]].replica}/${bars.step[i]}/${bars.stage[i]}/${bars.micro_batch[i]}/${bars.op[i] ? "b" : "f"}`, i);
  }
  ctx.strokeStyle = theme.dark ? "rgba(255,255,255,0.55)" : "rgba(0,0,0,0.5)";
  ctx.lineWidth = 1;
  ctx.beginPath();
  for (const [key, i] of at) {
    const [replica, step, stage, batch, side] = key.split("/");
    const j = at.get(`${replica}/${step}/${Number(stage) + (side === "f" ? 1 : -1)}/${batch}/${side}`);
    if (j === undefined || bars.lane[i] === bars.lane[j]) continue;
    const left = x(header.origin_us + bars.start[i] + bars.length[i]);
    const right = x(header.origin_us + bars.start[j]);
    if (right < plot.left || left > plot.right) continue;
    const a = geometry(layout, bars.lane[i], marks.scroll);
    const b = geometry(layout, bars.lane[j], marks.scroll);
    const down = b.top > a.top;
    const y = down ? b.bar : b.bar + b.height;
    ctx.moveTo(left, down ? a.bar + a.height : a.bar);
    ctx.lineTo(right, y);
    ctx.moveTo(right - 4, y + (down ? -5 : 5));
    ctx.lineTo(right, y);
    ctx.lineTo(right + 1, y + (down ? -6 : 6));
  }
  ctx.stroke();
}

function paintMarks({ ctx, model, layout, theme, marks, x, plot }) {
  for (const [i, width] of [[marks.hover, 1.5], [marks.selected, 2.5]]) {
    if (i < 0 || i >= model.bars.op.length) continue;
    const g = geometry(layout, model.bars.lane[i], marks.scroll);
    const thin = model.header.ops[model.bars.op[i]].thin;
    const left = Math.max(x(model.header.origin_us + model.bars.start[i]), plot.left - 4);
    const right = Math.min(left + Math.max(model.bars.length[i] * ((plot.right - plot.left) / marks.span), 2), plot.right + 4);
    ctx.strokeStyle = theme.text;
    ctx.lineWidth = width;
    ctx.strokeRect(left, thin ? g.bar + g.height - g.foot : g.bar, right - left, thin ? g.foot : g.height);
  }
  if (marks.gap) {
    const g = geometry(layout, marks.gap.lane, marks.scroll);
    const left = x(model.header.origin_us + marks.gap.from);
    const right = x(model.header.origin_us + marks.gap.to);
    ctx.strokeStyle = theme.soft;
    ctx.lineWidth = 1;
    ctx.setLineDash([3, 2]);
    ctx.strokeRect(left + 0.5, g.bar + 0.5, right - left - 1, g.height - 1);
    ctx.setLineDash([]);
  }
}
