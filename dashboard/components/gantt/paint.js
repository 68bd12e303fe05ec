// Drawing: a model, a view and a theme onto a 2d context. Nothing here keeps state or listens to the mouse.

const GUTTER = 112;
const OVERVIEW = 34;
const LEVEL = { height: 58, gap: 14 };
const PATH_COLOR = { light: "#d4002a", dark: "#ff5c7a" };
const AXIS = 40;
const EDGE = 10;

function layoutFor(width, { lanes: rows, max_height: maxHeight, still }, panels) {
  const lanes = rows.length;
  const overview = still ? 0 : OVERVIEW;
  const room = maxHeight - overview - AXIS - 6;
  const row = Math.max(5, Math.min(lanes <= 4 ? 64 : 46, Math.floor(room / Math.max(lanes, 1))));
  const visible = Math.min(lanes * row, room);
  const top = overview + AXIS;
  const levels = top + visible + LEVEL.gap;
  const height = top + visible + 6 + panels * (LEVEL.height + LEVEL.gap);
  return { width, row, overview, top, lanesHeight: visible, levels, height, overflow: lanes * row - visible };
}

function readTheme(element) {
  const css = getComputedStyle(element);
  const get = (name, other) => css.getPropertyValue(name).trim() || other;
  const background = get("--st-background-color", "#ffffff");
  const [r, g, b] = channels(background);
  const dark = 0.2126 * r + 0.7152 * g + 0.0722 * b < 110;
  return {
    dark,
    background,
    text: get("--st-text-color", dark ? "#eee" : "#222"),
    soft: dark ? "rgba(255,255,255,0.62)" : "rgba(0,0,0,0.60)",
    line: dark ? "rgba(255,255,255,0.16)" : "rgba(0,0,0,0.13)",
    faint: dark ? "rgba(255,255,255,0.045)" : "rgba(0,0,0,0.035)",
    accent: get("--st-primary-color", "#0072b2"),
    font: get("--st-font", "sans-serif"),
  };
}

function channels(color) {
  const hex = color.match(/^#([0-9a-f]{6})/i);
  if (hex) return [0, 2, 4].map((i) => parseInt(hex[1].slice(i, i + 2), 16));
  const numbers = color.match(/[\d.]+/g);
  return numbers ? numbers.slice(0, 3).map(Number) : [255, 255, 255];
}

function lighten(color, share) {
  const mixed = channels(color).map((c) => Math.round(c + (255 - c) * share));
  return `rgb(${mixed.join(",")})`;
}

const hatches = new Map();
function hatch(ctx, theme, ratio) {
  const key = `${theme.dark}${ratio}`;
  if (!hatches.has(key)) {
    const tile = document.createElement("canvas");
    const size = Math.round(7 * ratio);
    tile.width = tile.height = size;
    const pen = tile.getContext("2d");
    pen.fillStyle = theme.dark ? "rgba(255,255,255,0.05)" : "rgba(0,0,0,0.03)";
    pen.fillRect(0, 0, size, size);
    pen.strokeStyle = theme.dark ? "rgba(255,255,255,0.22)" : "rgba(0,0,0,0.20)";
    pen.lineWidth = ratio;
    pen.beginPath();
    for (const shift of [-size, 0, size]) pen.moveTo(shift, size), pen.lineTo(shift + size, 0);
    pen.stroke();
    hatches.set(key, tile);
  }
  const pattern = ctx.createPattern(hatches.get(key), "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}

function geometry(layout, lane, scroll) {
  const pad = layout.row >= 18 ? Math.min(6, layout.row * 0.13) : 0.5;
  const strip = layout.row >= 24 ? 6 : 0;
  const top = layout.top + lane * layout.row - scroll;
  const bar = top + pad + (strip ? strip + 2 : 0);
  const height = layout.row - 2 * pad - (strip ? strip + 2 : 0);
  const foot = Math.max(Math.min(height, 2), Math.min(8, height * 0.2));
  return { top, stripTop: top + pad, strip, bar, height, foot };
}

function paint(ctx, model, view, layout, theme, marks) {
  const ratio = marks.ratio;
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.fillStyle = theme.background;
  ctx.fillRect(0, 0, layout.width, layout.height);
  const plot = { left: GUTTER, right: layout.width - EDGE };
  const scale = (plot.right - plot.left) / (view.to - view.from);
  const x = (t) => plot.left + (t - view.from) * scale;
  const frame = { ctx, model, view, layout, theme, marks, plot, scale, x };
  paintAxis(frame);
  paintStepNames(frame);
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.left, layout.top, plot.right - plot.left, layout.lanesHeight);
  ctx.clip();
  paintSpans(frame);
  if (gapsShown(model, marks.wants)) paintGaps(frame);
  paintBars(frame);
  paintStepLines(frame);
  if (marks.arrows) paintArrows(frame);
  if (marks.wants.path) paintPath(frame);
  paintMarks(frame);
  ctx.restore();
  paintRecutLines(frame);
  paintGutter(frame);
  panelsOf(model, marks.wants).forEach((kind, place) => paintLevels(frame, kind, layout.levels + place * (LEVEL.height + LEVEL.gap)));
  if (layout.overview) paintOverview(frame);
}

function paintSpans({ ctx, model, layout, theme, marks, x, plot }) {
  const { spans, header } = model;
  const pattern = hatch(ctx, theme, marks.ratio);
  for (let i = 0; i < spans.lane.length; i++) {
    const left = Math.max(plot.left, x(header.origin_us + spans.start[i]));
    const right = Math.min(plot.right, x(header.origin_us + spans.end[i]));
    if (right <= left) continue;
    const g = geometry(layout, spans.lane[i], marks.scroll);
    ctx.fillStyle = pattern;
    ctx.fillRect(left, g.bar, right - left, g.height);
    if (g.strip && spans.step[i] >= 0 && right - left > 24) paintPhases(ctx, g, [spans.start[i], spans.warm[i], spans.cool[i], spans.end[i]].map((t) => x(header.origin_us + t)), theme);
  }
}

// Warm-up rises, steady is level, cool-down falls: a shape needs no colour of its own.
function paintPhases(ctx, g, [start, warm, cool, end], theme) {
  const base = g.stripTop + g.strip;
  ctx.fillStyle = theme.dark ? "rgba(255,255,255,0.42)" : "rgba(0,0,0,0.36)";
  ctx.beginPath();
  for (const points of [
    [[start, base], [warm, base], [warm, g.stripTop]],
    [[warm + 1, base], [warm + 1, g.stripTop], [cool - 1, g.stripTop], [cool - 1, base]],
    [[cool, g.stripTop], [cool, base], [end, base]],
  ]) {
    if (points.at(-1)[0] - points[0][0] < 0.5) continue;
    points.forEach(([px, py], k) => (k ? ctx.lineTo(px, py) : ctx.moveTo(px, py)));
    ctx.closePath();
  }
  ctx.fill();
}

function paintBars(frame) {
  const { ctx, model, layout, marks } = frame;
  const { bars, header } = model;
  const rows = header.lanes.map((_, lane) => geometry(layout, lane, marks.scroll));
  const narrow = bars.op.length > NARROW.from ? new NarrowBars(frame) : null;
  const texts = [];
  const drawn = new Uint32Array(header.lanes.length * 32); // bars with a letter, by row and op: numbers in only some of them would be noise
  const last = model.paint.findLastIndex(({ op }) => !header.ops[op].thin);
  model.paint.forEach((group, place) => {
    paintGroup(frame, group, rows, narrow, texts, drawn);
    if (narrow && place === last) narrow.paint(ctx, rows, false);
  });
  if (narrow && last < 0) narrow.paint(ctx, rows, false);
  if (narrow) narrow.paint(ctx, rows, true);
  ctx.globalAlpha = 1;
  paintNumbers(frame, rows, fittingNumbers(frame, rows, texts, drawn));
}

// The bars of one colour.
function paintGroup({ ctx, model, layout, marks, scale, view, plot }, { op, shade, ids }, rows, narrow, texts, drawn) {
  const { header } = model;
  const { start, length, lane, micro_batch, step } = model.bars;
  const { letter, thin, color: own } = header.ops[op];
  const color = shade ? lighten(own, 0.24 * shade) : own;
  const [full, dimmed] = [pixelOf(color, 1), pixelOf(color, 0.22)];
  const selected = marks.micro_batch;
  const shift = header.origin_us - view.from;
  const [lowest, bottom] = [layout.top - layout.row, layout.top + layout.lanesHeight];
  ctx.fillStyle = color;
  ctx.globalAlpha = 1;
  for (const i of ids) {
    const left = plot.left + (start[i] + shift) * scale;
    let width = length[i] * scale;
    if (left > plot.right || left + width < plot.left) continue;
    const g = rows[lane[i]];
    if (g.top < lowest || g.top > bottom) continue; // scrolled away
    const related = selected < 0 || (micro_batch[i] === selected && step[i] === marks.step);
    if (narrow && width < NARROW.width) {
      narrow.add(lane[i], thin, left, width, related ? full : dimmed);
      if (letter && micro_batch[i] >= 0) drawn[lane[i] * 32 + op]++;
      continue;
    }
    if (selected >= 0) ctx.globalAlpha = related ? 1 : 0.22;
    if (width > 3) width -= 1;
    if (thin) ctx.fillRect(left, g.bar + g.height - g.foot, Math.max(width, 0.7), g.foot);
    else ctx.fillRect(left, g.bar, Math.max(width, 0.7), g.height);
    if (!letter || g.height < 11 || micro_batch[i] < 0) continue;
    if (left >= plot.left && left + width <= plot.right) drawn[lane[i] * 32 + op]++; // one that is cut off decides nothing
    if (width >= 6 && texts.length < 18000) texts.push(i, left, width);
  }
}

// What is written into the bars of a row and op: letter and number, or the number alone, in the first way that fits most of them; else none.
function fittingNumbers({ model, plot }, rows, texts, drawn) {
  const { bars, header } = model;
  const found = new Map();
  for (let k = 0; k < texts.length; k += 3) {
    const i = texts[k];
    const left = Math.max(texts[k + 1], plot.left);
    const width = Math.min(texts[k + 1] + texts[k + 2], plot.right) - left;
    const key = bars.lane[i] * 32 + bars.op[i];
    if (!found.has(key)) found.set(key, [[], [], []]);
    const size = Math.min(13, Math.max(9, rows[bars.lane[i]].height * 0.42));
    const number = String(bars.micro_batch[i]);
    const choices = [[header.ops[bars.op[i]].letter + number, size, 6], [number, size, 2], [number, 9, 0.5]];
    choices.forEach(([text, px, air], way) => {
      if (width >= px * 0.58 * text.length + air) found.get(key)[way].push({ i, text, size: px, middle: left + width / 2 });
    });
  }
  return [...found].flatMap(([key, ways]) => ways.find((list, way) => list.length >= (way < 2 ? 0.97 : 0.7) * drawn[key]) ?? []);
}

function paintNumbers({ ctx, model, marks, theme }, rows, numbers) {
  const { bars, header } = model;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  for (const { i, text, size, middle } of numbers) {
    const g = rows[bars.lane[i]];
    if (marks.micro_batch >= 0) ctx.globalAlpha = bars.micro_batch[i] === marks.micro_batch && bars.step[i] === marks.step ? 1 : 0.35;
    ctx.font = `600 ${size}px ${theme.font}`;
    ctx.fillStyle = header.ops[bars.op[i]].ink;
    ctx.fillText(text, middle, g.bar + g.height / 2 + 0.5);
  }
  ctx.globalAlpha = 1;
}

function paintStepLines({ ctx, model, layout, theme, x, plot }) {
  ctx.strokeStyle = theme.soft;
  ctx.lineWidth = 1;
  ctx.setLineDash([2, 3]);
  ctx.beginPath();
  let last = -40;
  for (const edge of model.steps) {
    const at = Math.round(x(edge.from)) + 0.5;
    if (at < plot.left || at > plot.right || at - last < 40) continue;
    ctx.moveTo(at, layout.top);
    ctx.lineTo(at, layout.top + layout.lanesHeight);
    last = at;
  }
  ctx.stroke();
  ctx.setLineDash([]);
}
