// The component: wires view, drawing and Streamlit. One instance lives as long as its place on the page, so zoom, pan and
// selection survive every refresh: a refresh only brings new columns.

class Gantt {
  constructor(parent) {
    this.root = parent.querySelector(".gantt");
    this.canvas = parent.querySelector("canvas");
    this.tip = parent.querySelector(".tip");
    this.legend = parent.querySelector(".legend");
    this.view = new View();
    this.details = parent.querySelector(".details");
    this.marks = { hover: -1, selected: -1, gap: null, micro_batch: -1, step: -1, arrows: false, scroll: 0, ratio: 1, span: 1, cursor: -1 };
    this.wants = this.marks.wants = { path: false, gaps: "", levels: true }; // what the server adds on demand
    this.follow = true;
    this.model = null;
    this.jump = null;
    this.pending = 0;
    this.mouse = null;
    this.abort = new AbortController();
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(this.root);
    listen(this);
  }

  receive(bytes, setStateValue) {
    this.setStateValue = setStateValue;
    const model = decodeMessage(bytes);
    const { header } = model;
    const first = this.model === null;
    const kept = this.selection;
    this.model = model;
    this.view.extent = header.extent;
    if (first || header.jump !== this.jump) {
      this.jump = header.jump;
      this.follow = header.follow;
      this.view.set(...header.view);
      if (header.closed) showNewest(this);
    } else if (this.follow) this.view.set(...header.view);
    this.marks.selected = kept ? this.findAgain(kept) : -1;
    this.root.classList.toggle("plain", header.plain);
    this.root.classList.toggle("still", header.still);
    this.root.classList.toggle("closed", header.closed);
    fillLegend(this);
    if (!this.layout) this.drawNow();
    if (this.mouse) hover(this, this.mouse); // the mouse rests, what lies under it may have changed
    else this.draw();
    if (first && Math.abs(this.layout.width - header.width) > 0.25 * header.width) this.tell();
    else this.tellIfNeeded();
  }

  // After a refresh the same bar has another index.
  findAgain(kept) {
    const { bars } = this.model;
    for (let i = 0; i < bars.op.length; i++) {
      if (bars.step[i] === kept.step && bars.op[i] === kept.op && bars.micro_batch[i] === kept.micro_batch && bars.stage[i] === kept.stage)
        if (bars.count[i] === 1) return i;
    }
    return -1;
  }

  select(i) {
    const { bars } = this.model;
    this.marks.selected = i;
    this.selection = i < 0 ? null : { step: bars.step[i], op: bars.op[i], micro_batch: bars.micro_batch[i], stage: bars.stage[i] };
    const single = i >= 0 && bars.count[i] === 1;
    this.marks.micro_batch = single ? bars.micro_batch[i] : -1;
    this.marks.step = single ? bars.step[i] : -1;
    this.showDetails();
    this.draw();
  }

  ask(name, value = true) {
    this.wants[name] = this.wants[name] === value ? (value === true ? false : "") : value;
    const pressed = { path: this.wants.path, levels: this.wants.levels, doing: this.wants.gaps === "doing", cause: this.wants.gaps === "cause" };
    for (const [button, on] of Object.entries(pressed)) this.root.querySelector(`[data-do="${button}"]`).setAttribute("aria-pressed", String(on));
    fillLegend(this);
    this.draw();
    this.tell();
  }

  // The selected bar in words, which stay while the mouse goes elsewhere and the run goes on.
  showDetails() {
    const i = this.marks.selected;
    this.details.hidden = i < 0;
    if (i < 0) return;
    const { title, lines } = describeBar(this.model, i);
    const item = ([name, value]) => {
      const span = document.createElement("span");
      span.append(Object.assign(document.createElement("em"), { textContent: name }), ` ${value}`);
      return span;
    };
    this.details.replaceChildren(Object.assign(document.createElement("b"), { textContent: title }), ...lines.map(item));
  }

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.drawNow();
    });
  }

  drawNow() {
    const width = Math.floor(this.root.clientWidth);
    if (!this.model || width < 50) return;
    const began = performance.now();
    const ratio = window.devicePixelRatio || 1;
    const layout = (this.layout = layoutFor(width, this.model.header, panelsOf(this.model, this.wants).length));
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(layout.height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(layout.height * ratio);
      this.canvas.style.height = `${layout.height}px`;
    }
    this.marks.ratio = ratio;
    this.marks.span = this.view.span;
    this.marks.scroll = clampNumber(this.marks.scroll, 0, layout.overflow);
    paint(this.canvas.getContext("2d"), this.model, this.view, layout, readTheme(this.root), this.marks);
    Object.assign(this.root.dataset, {
      bars: this.model.bars.op.length,
      from: Math.round(this.view.from),
      to: Math.round(this.view.to),
      follow: this.follow,
      last: this.model.header.last_step,
      path: this.model.header.path.length,
      causes: gapsShown(this.model, this.wants) && this.model.header.gap_kinds[0].word ? new Set(this.model.gaps.kind).size : 0,
      redraw: (performance.now() - began).toFixed(1),
    });
    const button = this.root.querySelector('[data-do="follow"]');
    button.setAttribute("aria-pressed", String(this.follow));
    const { live } = this.model.header;
    button.textContent = live ? (this.follow ? "Following live" : "Paused: follow live") : "Newest steps";
  }

  // The person moved the view: stop following, redraw at once, then ask the server for what is missing.
  moved() {
    this.follow = false;
    this.hideTip();
    this.draw();
    clearTimeout(this.pending);
    this.pending = setTimeout(() => this.tell(), 180);
  }

  tellIfNeeded() {
    const { header } = this.model;
    const plot = Math.max(this.layout.width - GUTTER - EDGE, 1);
    const coarse = header.merged && header.pixel_us > (this.view.span / plot) * 1.6 && this.view.span > 50;
    const outside = this.view.from < header.loaded[0] - 1 || this.view.to > header.loaded[1] + 1;
    if (!this.follow && (coarse || outside)) this.tell();
  }

  tell() {
    const view = { from: this.view.from, to: this.view.to, follow: this.follow, width: this.layout.width, jump: this.jump, ...this.wants };
    const text = JSON.stringify(view);
    if (text === this.told) return;
    this.told = text;
    this.setStateValue("view", view);
  }

  showTip(point, { title, lines }) {
    const row = ([name, value]) => {
      const line = document.createElement("div");
      for (const text of [name, value]) line.appendChild(Object.assign(document.createElement("span"), { textContent: String(text) }));
      return line;
    };
    this.tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: title }), ...lines.map(row));
    this.tip.hidden = false;
    const { offsetWidth: w, offsetHeight: h } = this.tip;
    const left = point.x + 16 + w > this.layout.width ? point.x - w - 12 : point.x + 16;
    const top = clampNumber(point.y + 14, 0, Math.max(this.layout.height - h, 0));
    this.tip.style.transform = `translate(${Math.max(left, 0)}px, ${top}px)`;
  }

  hideTip() {
    this.tip.hidden = true;
    this.marks.hover = -1;
    this.marks.cursor = -1;
    this.marks.gap = null;
  }

  destroy() {
    this.abort.abort();
    this.resize.disconnect();
    clearTimeout(this.pending);
    if (this.frame) cancelAnimationFrame(this.frame);
  }
}

// A file opens with its last two steps, which can be read, instead of all that it holds.
function showNewest(gantt) {
  const edges = jumpList(gantt.model).slice(-2);
  if (edges.length) gantt.view.set(edges[0].from, edges.at(-1).to);
}

function fillLegend(gantt) {
  const { header, bars } = gantt.model;
  const seen = new Set(bars.op);
  const shown = Object.entries(header.ops).filter(([op]) => Number(op) < 2 || seen.has(Number(op)));
  const key = JSON.stringify([shown.map(([op]) => op), header.gap_kinds, header.gaps_note, header.cuts.length, gantt.wants]);
  if (key === gantt.legendKey) return;
  gantt.legendKey = key;
  const chip = (label, style, kind) => {
    const item = document.createElement("span");
    const swatch = document.createElement("i");
    swatch.className = kind;
    if (style) swatch.style.background = style;
    item.append(swatch, label);
    return item;
  };
  const note = (text) => Object.assign(document.createElement("span"), { textContent: text, className: "note" });
  const chips = shown.map(([, s]) => chip(s.letter ? `${s.label} (${s.letter})` : s.label, s.color, s.thin ? "thin" : ""));
  const kinds = new Set(gapsShown(gantt.model, gantt.wants) ? gantt.model.gaps.kind : []);
  if (!kinds.size || header.gaps_note) chips.push(chip(header.bubble, "", "bubble"));
  const causes = header.gap_kinds.filter((kind, i) => kinds.size && (kinds.has(i) || kind.total));
  if (causes.some((kind) => kind.total)) chips.push(note("bubbles, as share of the ranks' time:"));
  for (const kind of causes) chips.push(chip(kind.total ? `${kind.label} ${kind.total}` : kind.label, kind.color, kind.word ? "gap cause" : "gap"));
  if (gantt.wants.gaps && header.gaps_note) chips.push(note(header.gaps_note));
  if (gantt.wants.path) {
    const path = chip("critical path", "", "path");
    path.firstChild.style.borderColor = PATH_COLOR[readTheme(gantt.root).dark ? "dark" : "light"];
    chips.push(path);
  }
  header.phases.forEach((phase) => chips.push(chip(phase.label, "", `phase ${phase.shape}`)));
  if (header.cuts.length) chips.push(chip("cut anew", "", "recut"));
  gantt.legend.replaceChildren(...chips);
}

const instances = new WeakMap();

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  let gantt = instances.get(parentElement);
  if (!gantt) instances.set(parentElement, (gantt = new Gantt(parentElement)));
  if (data && data.length) gantt.receive(data, setStateValue);
  return () => {
    gantt.destroy();
    instances.delete(parentElement);
  };
}
