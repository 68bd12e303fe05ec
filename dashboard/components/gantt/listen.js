// Mouse, wheel, keys and buttons of the Gantt.

function listen(gantt) {
  const { canvas, root } = gantt;
  const on = (target, name, handler, options = {}) => target.addEventListener(name, handler, { signal: gantt.abort.signal, ...options });
  let drag = null;

  on(canvas, "wheel", (event) => {
    if (!gantt.model) return;
    event.preventDefault();
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) gantt.view.pan(clampNumber(sideways / 800, -0.5, 0.5));
    else gantt.view.zoom(Math.exp(clampNumber(event.deltaY, -240, 240) * 0.0022), timeAt(gantt, pointOf(event).x));
    gantt.moved();
  }, { passive: false });

  on(canvas, "pointerdown", (event) => {
    if (!gantt.model || event.button) return;
    const point = pointOf(event);
    drag = { ...point, from: gantt.view.from, to: gantt.view.to, scroll: gantt.marks.scroll, far: false, overview: point.y < gantt.layout.overview };
    canvas.setPointerCapture(event.pointerId);
    if (drag.overview) jumpTo(gantt, point.x);
  });

  on(canvas, "pointermove", (event) => {
    if (!gantt.model) return;
    const point = (gantt.mouse = pointOf(event));
    if (!drag) return hover(gantt, point);
    if (drag.overview) return jumpTo(gantt, point.x);
    if (Math.hypot(point.x - drag.x, point.y - drag.y) > 3) drag.far = true;
    if (!drag.far) return;
    canvas.classList.add("dragging");
    const shift = ((drag.x - point.x) / (gantt.layout.width - GUTTER - EDGE)) * (drag.to - drag.from);
    gantt.view.set(drag.from + shift, drag.to + shift);
    gantt.marks.scroll = drag.scroll + (drag.y - point.y);
    gantt.moved();
  });

  on(canvas, "pointerup", (event) => {
    canvas.classList.remove("dragging");
    if (drag && !drag.far && !drag.overview) click(gantt, pointOf(event));
    drag = null;
  });
  on(canvas, "pointercancel", () => (drag = null));
  on(canvas, "pointerleave", () => {
    gantt.mouse = null;
    if (drag || !gantt.model) return;
    gantt.hideTip();
    gantt.draw();
  });
  on(canvas, "dblclick", () => act(gantt, "fit"));
  on(canvas, "keydown", (event) => {
    const name = event.key === "Enter" && event.shiftKey ? "previous_bar" : KEYS[event.key];
    if (!name || !gantt.model || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(gantt, name);
  });
  for (const button of root.querySelectorAll("button")) on(button, "click", () => gantt.model && act(gantt, button.dataset.do));
}

const KEYS = {
  ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", "[": "previous", "]": "next", f: "fit", F: "fit",
  " ": "follow", Enter: "next_bar", a: "arrows", A: "arrows", c: "path", C: "path", b: "doing", B: "doing", w: "cause", W: "cause", Home: "first", End: "last", Escape: "clear", ArrowUp: "up", ArrowDown: "down",
};

function act(gantt, name) {
  const { view, marks } = gantt;
  const jumps = () => jumpList(gantt.model);
  const show = (edge) => edge && (view.set(edge.from - 0.015 * (edge.to - edge.from), edge.to + 0.015 * (edge.to - edge.from)), gantt.moved());
  const near = (by) => {
    const list = jumps();
    const at = stepInView(list, view);
    show(list[clampNumber(at + by, 0, list.length - 1)]);
  };
  const actions = {
    left: () => (view.pan(-0.15), gantt.moved()),
    right: () => (view.pan(0.15), gantt.moved()),
    in: () => (view.zoom(1 / 1.5), gantt.moved()),
    out: () => (view.zoom(1.5), gantt.moved()),
    up: () => ((marks.scroll -= 3 * gantt.layout.row), gantt.draw()),
    down: () => ((marks.scroll += 3 * gantt.layout.row), gantt.draw()),
    fit: () => near(0),
    previous: () => near(-1),
    next: () => near(1),
    first: () => show(jumps()[0]),
    last: () => show(jumps().at(-1)),
    clear: () => gantt.select(-1),
    follow: () => {
      gantt.follow = !gantt.follow;
      gantt.draw();
      gantt.tell();
    },
    arrows: () => {
      marks.arrows = !marks.arrows;
      gantt.root.querySelector('[data-do="arrows"]').setAttribute("aria-pressed", String(marks.arrows));
      gantt.draw();
    },
    path: () => gantt.ask("path"),
    doing: () => gantt.ask("gaps", "doing"),
    cause: () => gantt.ask("gaps", "cause"),
    levels: () => gantt.ask("levels"),
    next_bar: () => selectBeside(gantt, 1),
    previous_bar: () => selectBeside(gantt, -1),
    png: () => save(gantt, "png", gantt.canvas.toDataURL("image/png")),
    csv: () => {
      const address = URL.createObjectURL(new Blob([barsAsText(gantt.model, view)], { type: "text/csv" }));
      save(gantt, "csv", address);
      setTimeout(() => URL.revokeObjectURL(address), 10_000);
    },
  };
  actions[name]();
}

function save(gantt, kind, address) {
  const step = gantt.model.steps[stepInView(gantt.model.steps, gantt.view)]?.step ?? 0;
  Object.assign(document.createElement("a"), { download: `timeline-step-${step}.${kind}`, href: address }).click();
}

// Select the bar after or before the selected one of its row, by keys alone; without one, the first in view. The view follows.
function selectBeside(gantt, by) {
  const { model, marks, view } = gantt;
  const { bars, header } = model;
  const solid = (i) => !header.ops[bars.op[i]].thin;
  const from = (i) => header.origin_us + bars.start[i];
  let i = marks.selected;
  if (i < 0) for (i = 0; i < bars.op.length && !(solid(i) && from(i) >= view.from); ) i++;
  else do i += by; while (i >= 0 && i < bars.op.length && !solid(i));
  if (i < 0 || i >= bars.op.length) return;
  gantt.select(i);
  const end = from(i) + bars.length[i];
  if (from(i) >= view.from && end <= view.to) return;
  view.set(from(i) - view.span / 2, from(i) + view.span / 2);
  gantt.moved();
}

function pointOf(event) {
  return { x: event.offsetX, y: event.offsetY };
}

function timeAt(gantt, x) {
  const plot = gantt.layout.width - GUTTER - EDGE;
  return gantt.view.from + ((x - GUTTER) / plot) * gantt.view.span;
}

function jumpTo(gantt, x) {
  const { extent } = gantt.model.header;
  const plot = gantt.layout.width - GUTTER - EDGE;
  const middle = extent[0] + clampNumber((x - GUTTER) / plot, 0, 1) * (extent[1] - extent[0]);
  gantt.view.set(middle - gantt.view.span / 2, middle + gantt.view.span / 2);
  gantt.moved();
}

// What lies under a point: a bar, a bubble, or nothing.
function under(gantt, point) {
  const { model, layout, marks } = gantt;
  if (point.x < GUTTER) return {};
  const place = Math.floor((point.y - layout.levels) / (LEVEL.height + LEVEL.gap));
  if (place >= 0 && place < panelsOf(model, gantt.wants).length) return { level: panelsOf(model, gantt.wants)[place], t: timeAt(gantt, point.x) };
  if (point.y < layout.top || point.y > layout.top + layout.lanesHeight) return {};
  const lane = Math.floor((point.y - layout.top + marks.scroll) / layout.row);
  if (lane < 0 || lane >= model.header.lanes.length) return {};
  const g = geometry(layout, lane, marks.scroll);
  const t = timeAt(gantt, point.x);
  const slack = gantt.view.span / layout.width;
  const bar = barAt(model, lane, t, point.y > g.bar + g.height - g.foot - 1, slack);
  if (bar >= 0 && !(model.header.ops[model.bars.op[bar]].thin && point.y < g.bar + g.height - g.foot - 2)) return { bar, lane, t };
  const gap = bubbleAt(model, lane, t);
  return gap ? { gap: { ...gap, lane }, lane, t } : {};
}

function hover(gantt, point) {
  const found = under(gantt, point);
  gantt.marks.hover = found.bar ?? -1;
  gantt.marks.gap = found.gap ?? null;
  gantt.marks.cursor = found.level !== undefined ? point.x : -1;
  if (found.bar !== undefined) gantt.showTip(point, describeBar(gantt.model, found.bar));
  else if (found.level !== undefined) gantt.showTip(point, describeLevel(gantt.model, found.level, found.t));
  else if (found.gap) gantt.showTip(point, describeBubble(gantt.model, gantt.wants, found.lane, found.t, found.gap));
  else gantt.hideTip();
  gantt.draw();
}

function click(gantt, point) {
  const found = under(gantt, point);
  const same = found.bar === gantt.marks.selected;
  gantt.select(found.bar === undefined || same ? -1 : found.bar);
}
