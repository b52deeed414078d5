// What part of a large drawing is seen: pan and zoom by pointer, wheel, touch and keys.

const LEAST = 0.02;
const MOST = 3;

/** Looks at a drawing of `size` through `svg`; `onchange` hears of every change, once a frame. */
export class Viewport {
  constructor(svg, onchange) {
    Object.assign(this, { svg, onchange, x: 0, y: 0, k: 1, pointers: new Map(), isDragged: false, size: { width: 1, height: 1 } });
    svg.addEventListener("pointerdown", (event) => this.press(event));
    svg.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, (event) => this.release(event));
    svg.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  get frame() {
    return { width: this.svg.clientWidth || 1, height: this.svg.clientHeight || 1 };
  }

  /** The part that is seen, in the units of the drawing. */
  get seen() {
    const { width, height } = this.frame;
    return { left: -this.x / this.k, top: -this.y / this.k, right: (width - this.x) / this.k, bottom: (height - this.y) / this.k };
  }

  changed() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      this.onchange(this);
    });
  }

  /** Show a rectangle whole, no larger than life. */
  show({ left, top, right, bottom }, margin = 24, most = 1) {
    const { width, height } = this.frame;
    const k = Math.min((width - 2 * margin) / (right - left), (height - 2 * margin) / (bottom - top), most);
    this.k = Math.max(LEAST, k);
    this.x = (width - (left + right) * this.k) / 2;
    this.y = (height - (top + bottom) * this.k) / 2;
    this.changed();
  }

  fit() {
    this.show({ left: 0, top: 0, right: this.size.width, bottom: this.size.height });
  }

  /** Show all of it where that can be read, else where it begins, at a scale that can. */
  open(boxes) {
    const { width, height } = this.frame;
    const whole = Math.min(width / this.size.width, height / this.size.height);
    if (whole > 0.55) return this.fit();
    const top = [...boxes].sort((a, b) => a[0] + a[1] - b[0] - b[1])[0];
    this.k = width < 600 ? 0.7 : 0.8;
    this.x = 56;
    const first = boxes.filter(([x, y]) => x < (width - 56) / this.k && y < height / this.k).map(([x]) => x);
    const middle = first.reduce((sum, x) => sum + x, 0) / (first.length || 1);
    if (this.size.width * this.k < width) this.x = width / 2 - middle * this.k;
    else if (width < 600 && top) this.x = width / 2 - top[0] * this.k; // on the graph, not on the room beside it
    this.y = 0;
    return this.changed();
  }

  /** Whether a box is seen whole at a scale that can be read. */
  shows([x, y, width, height], least) {
    const { left, top, right, bottom } = this.seen;
    return this.k >= least && x - width / 2 > left && x + width / 2 < right && y - height / 2 > top && y + height / 2 < bottom;
  }

  /** Bring a point to the middle, at a scale at which labels can be read. */
  centre(x, y, least = 0.7) {
    const { width, height } = this.frame;
    this.k = Math.max(this.k, least);
    this.x = width / 2 - x * this.k;
    this.y = height / 2 - y * this.k;
    this.changed();
  }

  zoom(factor, atX = this.frame.width / 2, atY = this.frame.height / 2) {
    const k = Math.min(MOST, Math.max(LEAST, this.k * factor));
    this.x = atX - ((atX - this.x) * k) / this.k;
    this.y = atY - ((atY - this.y) * k) / this.k;
    this.k = k;
    this.changed();
  }

  pan(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.changed();
  }

  press(event) {
    if (event.button !== 0) return;
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    this.isDragged = false;
  }

  drag(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY];
    const [dx, dy] = [now[0] - before[0], now[1] - before[1]];
    if (!this.isDragged && Math.hypot(dx, dy) < 4) return; // a click that trembles
    if (!this.isDragged) this.svg.setPointerCapture(event.pointerId);
    this.isDragged = true;
    this.svg.classList.add("dragging");
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) this.pinch(other, before, now);
    else this.pan(dx, dy);
    this.pointers.set(event.pointerId, now);
  }

  pinch(still, before, now) {
    const apart = (p) => Math.hypot(p[0] - still[0], p[1] - still[1]) || 1;
    const frame = this.svg.getBoundingClientRect();
    this.zoom(apart(now) / apart(before), (still[0] + now[0]) / 2 - frame.left, (still[1] + now[1]) / 2 - frame.top);
  }

  release(event) {
    this.pointers.delete(event.pointerId);
    this.svg.classList.remove("dragging");
  }

  /** The wheel zooms a graph that was clicked; before that it scrolls the page past it. */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.svg) return;
    event.preventDefault();
    const frame = this.svg.getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.clientX - frame.left, event.clientY - frame.top);
  }
}
