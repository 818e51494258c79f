// A chart of means with their spread over seeds. Values show under the pointer, and by the arrow keys.

const HEIGHT = 270;
const MOST_BANDS = 8; // more of them are mud
const ROOM = { left: 52, right: 12, top: 8, bottom: 36 };

class Chart {
  constructor(curves, spec, shown) {
    this.curves = curves;
    this.spec = spec;
    this.shown = shown; // {axis, methods, radii}: what the controls of the section say
    this.choice = spec.choices[0];
    this.drawing = svg("svg", {
      tabindex: 0,
      role: "group",
      "aria-roledescription": "chart",
      "aria-label": `${spec.title}. Left and right arrow keys read out values.`,
    });
    this.tip = html("div", { class: "tip" });
    this.tip.hidden = true;
    this.spoken = html("p", { class: "spoken", "aria-live": "polite" });
    const head = html("div", { class: "choices" }, html("h3", {}, spec.title), ...this.buttons());
    this.figure = html("figure", { class: "chart" }, head, this.drawing, this.tip, this.spoken);
    this.listen();
  }

  buttons() {
    if (this.spec.choices.length < 2) return [];
    return choiceButtons(this.spec.choices, (score) => score.label, (score) => {
      this.choice = score;
      this.draw();
    });
  }

  listen() {
    const move = (event) => this.showAt(event.clientX - this.drawing.getBoundingClientRect().left);
    this.drawing.addEventListener("pointermove", move);
    this.drawing.addEventListener("pointerdown", move);
    this.drawing.addEventListener("pointerleave", () => this.hide());
    this.drawing.addEventListener("blur", () => this.hide());
    this.drawing.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.figure);
  }

  // The visible lines: points {x, mean, sd, n} of the chosen score.
  lines() {
    const { axis, methods, radii } = this.shown;
    return this.curves.arms
      .filter((arm) => methods.has(arm.method) && (!this.curves.radii.length || arm.rho === null || radii.has(arm.rho)))
      .map((arm) => ({
        arm,
        points: (arm.values[this.choice.key] || [])
          .map((value, i) => value && { x: arm[axis][i], mean: value[0], sd: value[1], n: value[2] })
          .filter((point) => point && point.x !== null),
      }))
      .filter((line) => line.points.length);
  }

  draw() {
    this.hide();
    const width = this.drawing.clientWidth;
    this.visible = this.lines();
    this.drawing.replaceChildren();
    if (!width) return;
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    if (!this.visible.length) {
      this.drawing.append(svg("text", { x: ROOM.left, y: HEIGHT / 2 }, "None of the methods chosen has this."));
      return;
    }
    this.scales(width);
    this.axes(width);
    if (this.visible.length <= MOST_BANDS) this.drawing.append(...this.visible.map((line) => this.band(line)));
    this.drawing.append(...this.visible.map((line) => this.path(line)));
    for (const line of this.visible) this.drawing.append(...this.marks(line));
    this.pointer = svg("g");
    this.drawing.append(this.pointer);
  }

  scales(width) {
    const points = this.visible.flatMap((line) => line.points);
    const end = Math.max(...points.map((point) => point.x)) || 1;
    this.x = makeScale(0, end, ROOM.left, width - ROOM.right, false);
    const means = domain(points.map((point) => point.mean), this.choice);
    const all = points.flatMap((point) => [point.mean - point.sd, point.mean + point.sd]);
    const own = means.log ? means : domain(all, { ...this.choice, wide: false });
    this.range = own;
    this.y = makeScale(own.low, own.high, HEIGHT - ROOM.bottom, ROOM.top, own.log);
  }

  axes(width) {
    for (const value of this.y.ticks(5)) {
      const y = this.y.place(value);
      const text = svg("text", { x: ROOM.left - 6, y: y + 4, "text-anchor": "end" }, tickText(value, this.choice.percent));
      this.drawing.append(svg("line", { x1: ROOM.left, x2: width - ROOM.right, y1: y, y2: y, class: "grid" }), text);
    }
    for (const value of this.x.ticks(Math.max(2, Math.floor(width / 75)))) {
      const at = { x: this.x.place(value), y: HEIGHT - ROOM.bottom + 16, "text-anchor": "middle" };
      this.drawing.append(svg("text", at, tickText(value, false)));
    }
    const middle = (ROOM.left + width - ROOM.right) / 2;
    const name = this.shown.axis === "samples" ? "samples processed" : "seconds of training";
    this.drawing.append(svg("text", { x: middle, y: HEIGHT - 4, "text-anchor": "middle" }, name));
  }

  at(point, value = point.mean) {
    const inside = Math.min(Math.max(value, this.range.low), this.range.high);
    return `${this.x.place(point.x).toFixed(1)},${this.y.place(inside).toFixed(1)}`;
  }

  path({ arm, points }) {
    const d = `M${points.map((point) => this.at(point)).join("L")}`;
    return svg("path", { d, class: "line", stroke: colour(arm.method), "stroke-dasharray": dash(arm.rho) });
  }

  band({ arm, points }) {
    const above = points.map((point) => this.at(point, point.mean + point.sd));
    const below = points.map((point) => this.at(point, point.mean - point.sd)).reverse();
    const d = points.some((point) => point.sd > 0) ? `M${[...above, ...below].join("L")}Z` : "";
    return svg("path", { d, class: "band", fill: colour(arm.method) });
  }

  marks({ arm, points }, kind = "mark") {
    const every = Math.ceil(points.length / 25);
    return points
      .filter((_, i) => i % every === 0)
      .map((point) =>
        svg("path", {
          d: shape(arm.method, 3.2),
          transform: `translate(${this.at(point)})`,
          class: kind,
          stroke: colour(arm.method),
        }),
      );
  }

  // -- values under the pointer ---------------------------------------------------------------------------------------

  places() {
    return [...new Set(this.visible.flatMap((line) => line.points.map((point) => point.x)))].sort((a, b) => a - b);
  }

  showAt(pixel) {
    if (!this.visible.length) return;
    this.show(nearest(this.places(), (x) => Math.abs(this.x.place(x) - pixel)));
  }

  key(event) {
    const places = this.visible.length ? this.places() : [];
    const here = places.indexOf(this.here);
    const to = { ArrowRight: here + 1, ArrowLeft: here < 0 ? places.length - 1 : here - 1, Home: 0, End: places.length - 1 };
    if (event.key === "Escape") this.hide();
    if (!(event.key in to) || !places.length) return;
    event.preventDefault();
    this.show(places[Math.min(Math.max(to[event.key], 0), places.length - 1)]);
    this.spoken.textContent = this.tip.innerText.replace(/\s*\n\s*/g, ", ");
  }

  show(x) {
    this.here = x;
    const found = this.visible
      .filter(({ points }) => x >= points[0].x && x <= points[points.length - 1].x)
      .map(({ arm, points }) => ({ arm, point: nearest(points, (point) => Math.abs(point.x - x)) }))
      .sort((a, b) => b.point.mean - a.point.mean);
    const pixel = this.x.place(x);
    const cross = { x1: pixel, x2: pixel, y1: ROOM.top, y2: HEIGHT - ROOM.bottom, class: "cross" };
    const marks = found.flatMap(({ arm, point }) => this.marks({ arm, points: [point] }, "mark at"));
    this.pointer.replaceChildren(svg("line", cross), ...marks);
    const unit = this.shown.axis === "samples" ? " samples" : " s";
    const title = html("b", {}, (this.shown.axis === "samples" ? Math.round(x).toLocaleString("en") : String(x)) + unit);
    this.tip.replaceChildren(title, ...found.map((one) => this.row(one)));
    this.tip.hidden = false;
    this.placeTip(pixel);
  }

  row({ arm, point }) {
    const spread = point.n > 1 ? ` ± ${written(point.sd, this.choice.percent)}` : "";
    const seeds = point.n < arm.seeds ? ` (${point.n} of ${arm.seeds} seeds)` : "";
    const value = html("span", {}, written(point.mean, this.choice.percent) + spread + seeds);
    return html("div", {}, swatch(arm.method, arm.rho), html("span", {}, arm.name), value);
  }

  placeTip(pixel) {
    const [room, own] = [this.figure.clientWidth, this.tip.offsetWidth];
    const left = pixel + 24 + own < room ? pixel + 24 : pixel - own - 4;
    this.tip.style.left = `${Math.max(4, Math.min(left, room - own - 4))}px`;
    this.tip.style.top = `${this.drawing.getBoundingClientRect().top - this.figure.getBoundingClientRect().top + 6}px`;
  }

  hide() {
    this.here = undefined;
    this.tip.hidden = true;
    if (this.pointer) this.pointer.replaceChildren();
  }
}

function nearest(items, distance) {
  return items.reduce((best, item) => (distance(item) < distance(best) ? item : best));
}
