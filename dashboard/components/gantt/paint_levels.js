// Below and on top of the rows: curves on the same time axis, bubbles by kind, the critical path.

const LEVELS = [
  { title: "in flight", unit: "micro-batches", format: (value) => value.toFixed(0) },
  { title: "memory", unit: "", format: formatBytes },
];

// Which curves there are anything to draw for.
function panelsOf(model, wants) {
  return wants.levels ? [0, 1].filter((kind) => model.curves[kind].length) : [];
}

function laneColor(lane, lanes) {
  const colors = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#a65400", "#8a5aa8", "#999933"];
  return lanes > 24 ? colors[0] : colors[lane % colors.length];
}

function paintLevels({ ctx, model, layout, theme, plot, x, marks }, kind, top) {
  const { levels, header } = model;
  const curves = model.curves[kind];
  const visible = (i) => x(header.origin_us + levels.start[i]);
  let highest = 0;
  for (const { from, to } of curves) for (let i = from; i < to; i++) if (visible(i) <= plot.right) highest = Math.max(highest, levels.value[i]);
  const y = (value) => top + LEVEL.height - (value / (highest * 1.08 || 1)) * LEVEL.height;
  ctx.fillStyle = theme.faint;
  ctx.fillRect(plot.left, top, plot.right - plot.left, LEVEL.height);
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.left, top - 2, plot.right - plot.left, LEVEL.height + 4);
  ctx.clip();
  ctx.lineWidth = curves.length > 12 ? 0.8 : 1.6;
  for (const { lane, from, to } of curves) {
    ctx.strokeStyle = laneColor(lane, header.lanes.length);
    ctx.globalAlpha = curves.length > 12 ? 0.5 : 0.95;
    ctx.beginPath();
    let before = null;
    for (let i = from; i < to; i++) {
      const left = visible(i);
      if (left > plot.right && before !== null && before.left > plot.right) break;
      if (before === null) ctx.moveTo(left, y(levels.value[i]));
      else ctx.lineTo(left, y(before.value)), ctx.lineTo(left, y(levels.value[i]));
      before = { left, value: levels.value[i] };
    }
    ctx.stroke();
  }
  ctx.restore();
  ctx.globalAlpha = 1;
  paintLevelWords(ctx, LEVELS[kind], top, highest, theme, plot);
  if (marks.cursor >= 0) {
    ctx.fillStyle = theme.soft;
    ctx.fillRect(Math.round(marks.cursor), top, 1, LEVEL.height);
  }
}

function paintLevelWords(ctx, { title, unit, format }, top, highest, theme, plot) {
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  ctx.fillStyle = theme.text;
  ctx.font = `600 12px ${theme.font}`;
  ctx.fillText(title, 2, top + 10);
  const taken = ctx.measureText(title).width + 14;
  ctx.fillStyle = theme.soft;
  ctx.font = `11px ${theme.font}`;
  if (unit) ctx.fillText(unit, 2, top + 26);
  ctx.textAlign = "right";
  const crowded = taken + ctx.measureText(format(highest)).width > plot.left - 6;
  ctx.fillText(format(highest), plot.left - 6, top + (crowded ? 25 : 6));
  ctx.fillText("0", plot.left - 6, top + LEVEL.height - 4);
}

// What the message brings may still be of the other way to tell bubbles apart, or of none.
function gapsShown(model, wants) {
  return Boolean(model.gaps && wants.gaps && model.header.gap_kinds.length);
}

// A cause fills its bubble more firmly, is hatched as every bubble, and is written into it where there is room: not by colour alone.
function paintGaps({ ctx, model, layout, theme, marks, x, plot }) {
  const { gaps, header } = model;
  const words = [];
  for (let i = 0; i < gaps.lane.length; i++) {
    const left = Math.max(plot.left, x(header.origin_us + gaps.start[i]));
    const right = Math.min(plot.right, x(header.origin_us + gaps.start[i] + gaps.length[i]));
    if (right - left < 0.3) continue;
    const g = geometry(layout, gaps.lane[i], marks.scroll);
    const { color, word } = header.gap_kinds[gaps.kind[i]];
    ctx.globalAlpha = word ? 0.8 : 0.55;
    ctx.fillStyle = color;
    ctx.fillRect(left, g.bar, right - left, g.height);
    if (word && right - left > 6.2 * word.length + 10 && g.height >= 14) words.push({ word, color, middle: (left + right) / 2, y: g.bar + g.height / 2 });
  }
  ctx.globalAlpha = 1;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.font = `600 11px ${theme.font}`;
  for (const { word, color, middle, y } of words) {
    ctx.fillStyle = inkOn(color);
    ctx.fillText(word, middle, y + 0.5);
  }
}

function inkOn(color) {
  const [r, g, b] = channels(color);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 115 ? "#1c1300" : "#ffffff";
}

// A frame around each op on the path, and a line from each to the next: what could not have been later without the step being later.
function paintPath({ ctx, model, layout, theme, marks, x, plot }) {
  ctx.strokeStyle = theme.dark ? PATH_COLOR.dark : PATH_COLOR.light;
  ctx.lineWidth = 2;
  ctx.lineJoin = "round";
  for (const pieces of model.header.path) {
    let before = null;
    for (const [lane, from, to] of pieces) {
      const left = x(from);
      const right = x(to);
      const g = geometry(layout, lane, marks.scroll);
      const middle = g.bar + g.height / 2;
      if (right >= plot.left - 20 && left <= plot.right + 20) {
        ctx.strokeRect(left + 1, g.bar + 1, Math.max(right - left - 2, 1), g.height - 2);
        if (before && (before.lane !== lane || left - before.right > 3)) {
          ctx.beginPath();
          ctx.moveTo(before.right - 1, before.middle);
          ctx.lineTo(left + 1, middle);
          ctx.stroke();
        }
      }
      before = { lane, right, middle };
    }
  }
}
