// Lines and points over two axes, with the nearest point told on hover.

import { scale } from "./axes.js";
import { h, s } from "./dom.js";
import { digits, isShare, named } from "./format.js";
import { hideTip, showTip } from "./tooltip.js";

const MARGIN = { left: 70, right: 14, top: 10, bottom: 44 };
const REACH = 40; // pixels from the pointer at which a point answers
const HEIGHT = 300;
const LARGE = 1e5; // from here on ticks are written as 200k, 3M: there is no room for more
const COMPACT = new Intl.NumberFormat("en-GB", { notation: "compact", maximumFractionDigits: 2 });

/**
 * A chart. A series has `label`, `colour`, `points` ({x, y, low, high, title, facts, isFaint}), and
 * `shape`: "line", "steps" (across, then up), "risers" (up, then across) or "points". `levels` are dashed horizontals, by name.
 */
export class Chart {
  constructor({ title, x, y, series, levels = {}, isLog = false, isLogUp = false, onpick }) {
    Object.assign(this, { title, x, y, series, levels, isLog, isLogUp, onpick, at: -1, marked: null });
    this.svg = s("svg", { tabindex: "0", role: "img", "aria-label": `${title}. ${y} over ${x}. Arrow keys go from point to point.` });
    this.keys = h("ul", { class: "keys" });
    this.element = h("figure", { class: "chart panel", style: { margin: 0 } }, h("h3", {}, title), this.keys, this.svg);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => this.hover(event));
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("click", (event) => { this.hover(event); this.pick(); });
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  draw() {
    const width = this.svg.clientWidth || 600;
    const drawn = this.series.filter((each) => each.points.length);
    const points = drawn.flatMap((each) => each.points);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("height", HEIGHT);
    this.keys.replaceChildren(...(drawn.length > 1 ? drawn : drawn.filter((each) => each.isNamed)).map(({ label, colour }) =>
      h("li", {}, h("span", { class: "swatch", style: { "--c": colour } }), label)));
    if (!points.length) return;
    const wide = Math.max(3, Math.floor(width / 90));
    const across = points.map((p) => p.x);
    const heights = [...points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]), ...Object.values(this.levels)];
    const limits = (name, values) => (isShare(name, values) ? [0, 1] : null);
    this.toX = scale(across, MARGIN.left, width - MARGIN.right, { isLog: this.isLog, pad: 0.03, ticks: wide, limits: limits(this.x, across) });
    this.toY = scale(heights, HEIGHT - MARGIN.bottom, MARGIN.top, { isLog: this.isLogUp, pad: 0.06, limits: limits(this.y, heights) });
    if (across.every(Number.isInteger)) this.toX.ticks = this.toX.ticks.filter(Number.isInteger); // there is no trial 1.5
    this.cursor = s("circle", { class: "cursor", r: 7, visibility: "hidden" });
    this.svg.replaceChildren(this.axes(width), this.lines(width), ...drawn.map((each) => this.one(each)), this.cursor);
    this.places = drawn.flatMap((each) => each.points.map((p) => ({ ...p, label: each.label, px: this.toX(p.x), py: this.toY(p.y) })));
    this.places.sort((a, b) => a.px - b.px);
  }

  axes(width) {
    const bottom = HEIGHT - MARGIN.bottom;
    return s("g", {},
      this.toY.ticks.map((v) => s("g", {},
        s("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: this.toY(v), y2: this.toY(v) }),
        s("text", { x: MARGIN.left - 8, y: this.toY(v) + 4, "text-anchor": "end" }, this.tick(this.y, v)))),
      this.toX.ticks.map((v) => s("text", { x: this.toX(v), y: bottom + 18, "text-anchor": "middle" }, this.tick(this.x, v))),
      s("text", { class: "title", x: (MARGIN.left + width - MARGIN.right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, this.x),
      s("text", { class: "title", transform: `translate(13 ${(MARGIN.top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, this.y));
  }

  /** A number at an axis: per cent where the quantity is a share. */
  tick(name, value) {
    if (isShare(name, [value])) return `${digits(100 * value, 4)}\u202f%`;
    return Math.abs(value) >= LARGE ? COMPACT.format(value) : digits(value, 5);
  }

  lines(width) {
    return s("g", { style: { "--c": "var(--muted)" } }, Object.entries(this.levels).map(([name, value]) => s("g", {},
      s("line", { class: "line dashed", x1: MARGIN.left, x2: width - MARGIN.right, y1: this.toY(value), y2: this.toY(value) }),
      s("text", { class: "level", x: MARGIN.left + 6, y: this.toY(value) + (this.toY(value) < MARGIN.top + 16 ? 14 : -5) }, `${name} ${this.say(this.y, value)}`))));
  }

  one({ colour, points, shape = "line", size = 4 }) {
    const at = points.map((p) => [this.toX(p.x), this.toY(p.y)]);
    const parts = [];
    if (points.some((p) => p.low !== undefined && p.low !== p.high)) parts.push(s("path", { class: "band", d: this.band(points) }));
    if (shape === "line") parts.push(s("path", { class: "line", d: `M${at.map((p) => p.join(" ")).join("L")}` }));
    if (shape === "steps") parts.push(s("path", { class: "line", d: at.map(([x, y], i) => (i ? `H${x}V${y}` : `M${x} ${y}`)).join("") }));
    if (shape === "risers") parts.push(s("path", { class: "line", d: at.map(([x, y], i) => (i ? `V${y}H${x}` : `M${x} ${y}`)).join("") }));
    const dots = points.map((p, i) => s("circle", {
      class: `dot${p.isFaint ? " faint" : ""}${p.key !== undefined && p.key === this.marked ? " marked" : ""}`,
      cx: at[i][0], cy: at[i][1], r: p.isFaint ? size - 0.6 : size,
    }));
    return s("g", { style: { "--c": colour } }, parts, dots);
  }

  band(points) {
    const up = points.map((p) => `${this.toX(p.x)} ${this.toY(p.high)}`);
    const down = points.map((p) => `${this.toX(p.x)} ${this.toY(p.low)}`).reverse();
    return `M${[...up, ...down].join("L")}Z`;
  }

  hover(event) {
    const frame = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    let [best, distance] = [-1, REACH];
    this.places?.forEach((p, i) => {
      const d = Math.hypot(p.px - x, p.py - y);
      if (d < distance) [best, distance] = [i, d];
    });
    this.show(best);
  }

  show(index) {
    this.at = index;
    const place = this.places?.[index];
    if (!place) return this.leave();
    this.cursor.setAttribute("cx", place.px);
    this.cursor.setAttribute("cy", place.py);
    this.cursor.setAttribute("visibility", "visible");
    const frame = this.svg.getBoundingClientRect();
    const facts = place.facts ?? [[this.x, this.say(this.x, place.x)], [this.y, this.say(this.y, place.y)], ...this.spread(place)];
    showTip(frame.left + place.px, frame.top + place.py, place.title ?? place.label, facts);
  }

  say(name, value) {
    return isShare(name, [value]) ? named(name, value) : digits(value, 5);
  }

  spread({ low, high }) {
    return low !== undefined && low !== high ? [["lowest, highest", `${this.say(this.y, low)}, ${this.say(this.y, high)}`]] : [];
  }

  leave() {
    this.at = -1;
    this.cursor?.setAttribute("visibility", "hidden");
    hideTip();
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step && this.places?.length) {
      event.preventDefault();
      this.show((this.at + step + this.places.length) % this.places.length);
    }
    if (event.key === "Enter") this.pick();
  }

  pick() {
    if (this.at >= 0) this.onpick?.(this.places[this.at]);
  }

  /** Mark the points of this key. */
  mark(key) {
    this.marked = key;
    if (this.element.isConnected) this.draw();
  }
}
