// The visible interval in microseconds, and how wheel, drag and keys move it. No drawing.

const MIN_SPAN = 5; // microseconds
const AIR = 0.02;
const clampNumber = (value, low, high) => Math.min(Math.max(value, low), high);

class View {
  constructor() {
    this.from = 0;
    this.to = 1;
    this.extent = [0, 1];
  }

  get widest() {
    return Math.max(this.extent[1] - this.extent[0], 1) * (1 + 2 * AIR);
  }

  get span() {
    return this.to - this.from;
  }

  set(from, to) {
    const [begin, end] = this.extent;
    const span = clampNumber(to - from, MIN_SPAN, this.widest);
    const air = span * AIR; // the view may end a little outside of the run, so that one sees that it ends
    let middle = (from + to) / 2;
    if (span > end - begin) middle = (begin + end) / 2;
    else middle = clampNumber(middle, begin - air + span / 2, end + air - span / 2);
    this.from = middle - span / 2;
    this.to = middle + span / 2;
  }

  zoom(factor, at) {
    const anchor = at ?? (this.from + this.to) / 2;
    const span = clampNumber(this.span * factor, MIN_SPAN, this.widest);
    const share = (anchor - this.from) / this.span;
    this.set(anchor - share * span, anchor + (1 - share) * span);
  }

  pan(share) {
    this.set(this.from + share * this.span, this.to + share * this.span);
  }
}

// The step that fills most of the view, as its place in the list; the nearest one where none is visible.
function stepInView(steps, view) {
  let best = -1;
  let most = -Infinity;
  steps.forEach((edge, i) => {
    const shared = Math.min(edge.to, view.to) - Math.max(edge.from, view.from);
    if (shared > most + 1e-6) (most = shared), (best = i);
  });
  return best;
}

// All steps that can be jumped to: those of the loaded window exactly, the others from the overview.
function jumpList(model) {
  const known = new Map(model.steps.map((edge) => [edge.step, edge]));
  const { overview } = model.header;
  overview.step.forEach((step, i) => {
    if (!known.has(step)) known.set(step, { step, from: overview.start[i], to: overview.end[i] });
  });
  return [...known.values()].sort((a, b) => a.from - b.from);
}
