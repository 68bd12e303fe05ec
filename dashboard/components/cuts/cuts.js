// A strip of layers whose cuts can be dragged, or moved with the arrow keys. It only reports cuts; what they give, the server says.

class Cuts {
  constructor(parent) {
    this.strip = parent.querySelector(".strip");
    this.sums = parent.querySelector(".sums");
    this.cuts = [];
    this.drag = null;
    this.token = null;
    this.resize = new ResizeObserver(() => this.draw());
    this.resize.observe(this.strip);
  }

  receive(data, setStateValue) {
    this.setStateValue = setStateValue;
    this.data = data;
    this.edges = [0];
    for (const cost of data.costs) this.edges.push(this.edges.at(-1) + cost);
    if (data.token !== this.token && !this.drag) {
      this.token = data.token;
      this.cuts = [...data.cuts];
    }
    this.draw();
  }

  get total() {
    return this.edges.at(-1) || 1;
  }

  // The layer border nearest to a place on the strip, between the neighbouring cuts.
  nearest(x, k) {
    const at = (x / this.strip.clientWidth) * this.total;
    const low = (this.cuts[k - 1] ?? 0) + 1;
    const high = (this.cuts[k + 1] ?? this.data.costs.length) - 1;
    let best = low;
    for (let i = low; i <= high; i++) if (Math.abs(this.edges[i] - at) < Math.abs(this.edges[best] - at)) best = i;
    return best;
  }

  move(k, cut) {
    const low = (this.cuts[k - 1] ?? 0) + 1;
    const high = (this.cuts[k + 1] ?? this.data.costs.length) - 1;
    if (cut < low || cut > high || cut === this.cuts[k]) return;
    this.cuts[k] = cut;
    this.draw(k);
  }

  tell() {
    this.setStateValue("cuts", [...this.cuts]);
  }

  draw(focused = -1) {
    if (!this.data) return;
    const { names, costs, colors, inks } = this.data;
    const percent = (value) => `${(100 * value) / this.total}%`;
    const bounds = [0, ...this.cuts, costs.length];
    const stageOf = (layer) => bounds.findIndex((bound, k) => layer >= bound && layer < bounds[k + 1]);
    const boxes = costs.map((cost, i) => {
      const box = document.createElement("div");
      const stage = stageOf(i);
      box.className = "layer";
      box.title = `${names[i]}: ${cost.toFixed(3)} ms per micro-batch, stage ${stage}`;
      Object.assign(box.style, { left: percent(this.edges[i]), width: percent(cost), background: colors[stage % colors.length], color: inks[stage % inks.length] });
      if ((cost / this.total) * this.strip.clientWidth > 7.5 * names[i].length + 8) box.textContent = names[i];
      return box;
    });
    const handles = this.cuts.map((cut, k) => this.handle(cut, k, percent));
    this.strip.replaceChildren(...boxes, ...handles);
    if (focused >= 0) handles[focused].focus();
    this.drawSums(bounds, percent);
  }

  drawSums(bounds, percent) {
    const sums = bounds.slice(0, -1).map((bound, k) => this.edges[bounds[k + 1]] - this.edges[bound]);
    const slowest = Math.max(...sums);
    this.sums.replaceChildren(...sums.map((sum, k) => {
      const label = document.createElement("span");
      const wide = sum / this.total > 0.07;
      label.textContent = wide ? `stage ${k}: ${sum.toFixed(2)} ms` : sum / this.total > 0.03 ? sum.toFixed(1) : "";
      label.style.left = percent((this.edges[bounds[k]] + this.edges[bounds[k + 1]]) / 2);
      if (sum === slowest) label.className = "slowest";
      return label;
    }));
  }

  handle(cut, k, percent) {
    const handle = document.createElement("button");
    handle.className = "cut";
    handle.style.left = percent(this.edges[cut]);
    handle.setAttribute("role", "slider");
    handle.setAttribute("aria-label", `Cut between stage ${k} and stage ${k + 1}`);
    handle.setAttribute("aria-valuemin", 1);
    handle.setAttribute("aria-valuemax", this.data.costs.length - 1);
    handle.setAttribute("aria-valuenow", cut);
    handle.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.drag = k;
      const onMove = (moved) => this.move(k, this.nearest(moved.clientX - this.strip.getBoundingClientRect().left, k));
      const onUp = () => {
        window.removeEventListener("pointermove", onMove);
        this.drag = null;
        this.tell();
      };
      window.addEventListener("pointermove", onMove);
      window.addEventListener("pointerup", onUp, { once: true });
    });
    handle.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      event.preventDefault();
      this.move(k, this.cuts[k] + by);
      this.tell();
    });
    return handle;
  }

  destroy() {
    this.resize.disconnect();
  }
}

const instances = new WeakMap();

export default function (component) {
  const { data, parentElement, setStateValue } = component;
  let cuts = instances.get(parentElement);
  if (!cuts) instances.set(parentElement, (cuts = new Cuts(parentElement)));
  if (data) cuts.receive(data, setStateValue);
  return () => {
    cuts.destroy();
    instances.delete(parentElement);
  };
}
