// Very many narrow bars: each is a few pixels in an image of two lines a row (bars, and the thin ones at the foot), which is then
// stretched to the row's height. Filling a hundred thousand rectangles takes a canvas many times as long.

const NARROW = { from: 6000, width: 2.5 }; // bars in the message; width in pixels below which a bar goes into the image

class NarrowBars {
  constructor({ model, plot, marks, layout }) {
    this.ratio = marks.ratio;
    this.left = plot.left;
    this.width = Math.max(1, Math.round((plot.right - plot.left) * marks.ratio));
    // Only the rows in view: of a thousand ranks that is a tenth.
    this.first = Math.max(0, Math.floor(marks.scroll / layout.row) - 1);
    this.lanes = Math.min(model.header.lanes.length - this.first, Math.ceil(layout.lanesHeight / layout.row) + 2);
    this.image = new ImageData(this.width, 2 * this.lanes);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.used = new Uint8Array(2 * this.lanes);
  }

  add(lane, thin, left, width, color) {
    const line = 2 * (lane - this.first) + (thin ? 1 : 0);
    const from = Math.max(0, Math.floor((left - this.left) * this.ratio));
    const to = Math.min(this.width, Math.max(from + 1, Math.round((left + width - this.left) * this.ratio)));
    const base = line * this.width;
    for (let x = from; x < to; x++) this.pixels[base + x] = color;
    this.used[line] = 1;
  }

  // Thin bars lie on top of the others, so they come in a second call.
  paint(ctx, rows, thin) {
    if (!this.canvas) {
      this.canvas = Object.assign(document.createElement("canvas"), { width: this.width, height: this.image.height });
      this.canvas.getContext("2d").putImageData(this.image, 0, 0);
    }
    ctx.imageSmoothingEnabled = false;
    for (let i = 0; i < this.lanes; i++) {
      const line = 2 * i + (thin ? 1 : 0);
      if (!this.used[line]) continue;
      const g = rows[this.first + i];
      const [top, height] = thin ? [g.bar + g.height - g.foot, g.foot] : [g.bar, g.height];
      ctx.drawImage(this.canvas, 0, line, this.width, 1, this.left, top, this.width / this.ratio, height);
    }
    ctx.imageSmoothingEnabled = true;
  }
}

// A colour as the bytes of a pixel.
function pixelOf(color, alpha) {
  const [r, g, b] = channels(color);
  return ((Math.round(255 * alpha) << 24) | (b << 16) | (g << 8) | r) >>> 0;
}
