// Which cuts held when: names of steps over the rows, with the cuts where they changed, and a line through all rows there.

// The cuts that held in a step; "" where they never changed.
function cutsIn({ cuts }, step) {
  return cuts.findLast((held) => held.step <= step)?.cuts ?? "";
}

// The places where the cuts changed: the first plan began with the run and changed nothing.
function recutsOf({ cuts }) {
  return cuts.slice(1).filter((held) => held.at !== null);
}

function paintRecutLines({ ctx, model, layout, theme, x, plot }) {
  ctx.fillStyle = theme.text;
  for (const { at } of recutsOf(model.header)) {
    const left = Math.round(x(at));
    if (left < plot.left || left > plot.right) continue;
    ctx.fillRect(left - 1, layout.top - 5, 2, layout.lanesHeight + 5);
    ctx.beginPath(); // a flag at its head, for it stands among the dashed lines of other steps
    [[-1, -5], [8, 0], [-1, 5]].forEach(([px, py], k) => (k ? ctx.lineTo(left + px, layout.top + py) : ctx.moveTo(left + px, layout.top + py)));
    ctx.fill();
  }
}

// Where the cuts changed and in the first step in view the cuts are named too, and other steps give way to that.
function paintStepNames({ ctx, model, layout, theme, plot, x }) {
  const { header, steps } = model;
  if (!header.numbered) return;
  const taken = [];
  ctx.textAlign = "left";
  ctx.font = `600 11px ${theme.font}`;
  ctx.fillStyle = theme.text;
  const place = (text, at, bound, air) => {
    const left = Math.max(at, plot.left) + 2;
    const right = left + ctx.measureText(text).width;
    if (right > bound || taken.some(([a, b]) => left < b && right + air > a)) return false;
    ctx.fillText(text, left, layout.top - 24);
    taken.push([left, right + air]);
    return true;
  };
  for (const { step, cuts, at } of recutsOf(header))
    if (x(at) >= plot.left && x(at) < plot.right) place(`step ${step} · cuts ${cuts}`, x(at), plot.right, 12);
  const first = steps.find((edge) => x(edge.to) > plot.left);
  if (first && header.cuts.length) place(`step ${first.step} · cuts ${cutsIn(header, first.step)}`, x(first.from), plot.right, 12);
  for (const edge of steps) {
    const text = `step ${edge.step}`;
    const narrow = x(edge.to) - x(edge.from) < ctx.measureText(text).width; // then the name stands for its neighbours too
    if (x(edge.to) > plot.left) place(text, x(edge.from), narrow ? plot.right : Math.min(x(edge.to), plot.right), narrow ? 40 : 8);
  }
}

function paintRecutsInOverview(ctx, header, theme, x, base) {
  ctx.fillStyle = theme.text;
  for (const { at } of recutsOf(header)) ctx.fillRect(Math.round(x(at)) - 1, 0, 2, base + 3);
}
