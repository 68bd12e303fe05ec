// The message from the server (dashboard/wire.py) as typed arrays, indexed for drawing and for finding the bar under the mouse.

const ARRAYS = { f4: Float32Array, i4: Int32Array, u4: Uint32Array, u2: Uint16Array, i2: Int16Array, u1: Uint8Array };

function decodeMessage(bytes) {
  const buffer = bytes.slice().buffer; // a copy begins at an aligned address, which typed arrays need
  const head = new DataView(buffer);
  if (String.fromCharCode(...new Uint8Array(buffer, 0, 4)) !== "GNT1") throw new Error("not a Gantt message");
  const length = head.getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const group = (name) =>
    Object.fromEntries(header.layout[name].map((c) => [c.name, new ARRAYS[c.type](buffer, 8 + length + c.offset, c.length)]));
  const optional = (name) => (header.layout[name] ? group(name) : null);
  return index({ header, bars: group("bars"), spans: group("spans"), levels: optional("levels"), gaps: optional("gaps") });
}

// Bars arrive sorted by lane and start, so a lane is a slice and a bar is found by bisection.
function index(model) {
  const { header, bars, spans } = model;
  const lanes = header.lanes.length;
  model.laneStart = new Uint32Array(lanes + 1);
  for (let i = 0; i < bars.lane.length; i++) model.laneStart[bars.lane[i] + 1]++;
  for (let lane = 0; lane < lanes; lane++) model.laneStart[lane + 1] += model.laneStart[lane];
  model.paint = paintGroups(model);
  model.steps = stepEdges(spans, header.origin_us);
  model.curves = curvesOf(model);
  return model;
}

// One list of bars per colour: setting a fill colour costs more than filling a rectangle.
function paintGroups({ header, bars }) {
  const groups = new Map();
  const chunk = header.lanes.map((lane) => new Map(lane.stages.map((stage, i) => [stage, i])));
  for (let i = 0; i < bars.op.length; i++) {
    const shade = Math.min(chunk[bars.lane[i]].get(bars.stage[i]) ?? 0, 3);
    const key = bars.op[i] * 4 + shade;
    let group = groups.get(key);
    if (!group) groups.set(key, (group = { op: bars.op[i], shade, ids: [] }));
    group.ids.push(i);
  }
  // Thin lines last: a send that runs beside a computation stays visible on top of it.
  return [...groups.values()].map((group) => ({ ...group, ids: Uint32Array.from(group.ids) })).sort((a, b) => header.ops[a.op].thin - header.ops[b.op].thin);
}

// Levels arrive ordered by kind, lane and time: one curve a kind and lane.
function curvesOf({ levels }) {
  const curves = [[], []];
  if (!levels) return curves;
  for (let i = 0; i < levels.lane.length; i++) {
    const list = curves[levels.kind[i]];
    if (!list.length || list.at(-1).lane !== levels.lane[i]) list.push({ lane: levels.lane[i], from: i, to: i });
    list.at(-1).to = i + 1;
  }
  return curves;
}

// The value of a curve at time t (microseconds): that of the last point before it; NaN before the first one.
function levelAt(model, curve, t) {
  const local = t - model.header.origin_us;
  let low = curve.from;
  let high = curve.to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (model.levels.start[middle] <= local) low = middle + 1;
    else high = middle;
  }
  return low > curve.from ? model.levels.value[low - 1] : NaN;
}

function stepEdges(spans, origin) {
  const edges = new Map();
  for (let i = 0; i < spans.step.length; i++) {
    if (spans.step[i] < 0) continue;
    const edge = edges.get(spans.step[i]);
    const from = origin + spans.start[i];
    const to = origin + spans.end[i];
    if (!edge) edges.set(spans.step[i], { step: spans.step[i], from, to });
    else if (from < edge.to + 60e6) (edge.from = Math.min(edge.from, from)), (edge.to = Math.max(edge.to, to));
  }
  return [...edges.values()].sort((a, b) => a.from - b.from);
}

// Return the index of the bar at time t (microseconds) of a lane, or -1. Thin bars only answer at the foot of the row.
function barAt(model, lane, t, atFoot, slack) {
  const { bars, header, laneStart } = model;
  let low = laneStart[lane];
  let high = laneStart[lane + 1];
  const first = low;
  const local = t - header.origin_us;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bars.start[middle] <= local + slack) low = middle + 1;
    else high = middle;
  }
  let thin = -1;
  for (let i = low - 1; i >= first && i > low - 400; i--) {
    if (bars.start[i] + bars.length[i] < local - slack) continue;
    if (!header.ops[bars.op[i]].thin) {
      if (!(atFoot && thin >= 0)) return i;
    } else if (thin < 0) thin = i;
    if (atFoot && thin >= 0) return thin;
  }
  return thin;
}

// Return the bubble at time t of a lane: where it begins and ends, and the bars beside it (-1: none); null outside a step.
function bubbleAt(model, lane, t) {
  const { bars, spans, header, laneStart } = model;
  const local = t - header.origin_us;
  for (let s = 0; s < spans.lane.length; s++) {
    if (spans.lane[s] !== lane || local < spans.start[s] || local > spans.end[s]) continue;
    const gap = { from: spans.start[s], to: spans.end[s], before: -1, after: -1, step: spans.step[s] };
    for (let i = laneStart[lane]; i < laneStart[lane + 1]; i++) {
      if (header.ops[bars.op[i]].thin) continue;
      const end = bars.start[i] + bars.length[i];
      if (end <= local && end > gap.from) (gap.from = end), (gap.before = i);
      if (bars.start[i] >= local && bars.start[i] < gap.to) (gap.to = bars.start[i]), (gap.after = i);
    }
    return gap;
  }
  return null;
}

// Warm-up, steady or cool-down of a lane at time t; "" outside a step.
function phaseAt({ spans, header }, lane, t) {
  const local = t - header.origin_us;
  for (let s = 0; s < spans.lane.length; s++) {
    if (spans.lane[s] !== lane || spans.step[s] < 0 || local < spans.start[s] || local > spans.end[s]) continue;
    return local < spans.warm[s] ? "warm-up" : local < spans.cool[s] ? "steady" : "cool-down";
  }
  return "";
}
