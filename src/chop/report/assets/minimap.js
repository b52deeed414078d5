// The whole drawing, small, with the part that is seen marked.

import { s } from "./dom.js";

const MOST_WIDE = 190;
const NARROW = 600; // pixels of the stage, below which the map is small
const LEAST_BOX = 1.2; // pixels

/** A map of `view`; `place` scales it to the height there is. */
export class Minimap {
  constructor(view) {
    this.view = view;
    this.dots = s("g", {});
    this.window = s("rect", { class: "window", rx: 2 });
    this.element = s("svg", { class: "minimap", "aria-hidden": "true" }, this.dots, this.window);
    this.element.addEventListener("pointerdown", (event) => { this.element.setPointerCapture(event.pointerId); this.go(event); });
    this.element.addEventListener("pointermove", (event) => { if (event.buttons) this.go(event); });
  }

  /** Draw the boxes of a layout in their colours. */
  draw(layout, colours, high) {
    const isNarrow = this.view.frame.width < NARROW;
    this.k = Math.min((isNarrow ? 0.45 : 1) * MOST_WIDE / layout.width, ((isNarrow ? 0.2 : 0.36) * high) / layout.height);
    const [width, height] = [layout.width * this.k, layout.height * this.k];
    this.element.setAttribute("width", width);
    this.element.setAttribute("height", height);
    const paths = new Map();
    layout.boxes.forEach(([x, y, w, h], i) => {
      const [wide, tall] = [Math.max(LEAST_BOX, w * this.k), Math.max(LEAST_BOX, h * this.k)];
      const path = `M${(x * this.k - wide / 2).toFixed(1)} ${(y * this.k - tall / 2).toFixed(1)}h${wide.toFixed(1)}v${tall.toFixed(1)}h${(-wide).toFixed(1)}z`;
      paths.set(colours[i], (paths.get(colours[i]) ?? "") + path);
    });
    this.dots.replaceChildren(...[...paths].map(([colour, d]) => s("path", { d, style: { "--c": colour } })));
    this.update();
  }

  update() {
    const { left, top, right, bottom } = this.view.seen;
    const { width, height } = this.view.size;
    const [x, y] = [Math.max(0, left), Math.max(0, top)];
    const is = { x: x * this.k, y: y * this.k, width: Math.max(3, (Math.min(width, right) - x) * this.k), height: Math.max(3, (Math.min(height, bottom) - y) * this.k) };
    for (const [name, value] of Object.entries(is)) this.window.setAttribute(name, value);
    const isWhole = left <= 0 && top <= 0 && right >= width && bottom >= height;
    this.element.style.display = isWhole ? "none" : "block";
  }

  go(event) {
    const frame = this.element.getBoundingClientRect();
    this.view.centre((event.clientX - frame.left) / this.k, (event.clientY - frame.top) / this.k, 0);
  }
}
