// Boxes and arrows of a layout as SVG. Only what is seen is in the page.

import { s } from "./dom.js";

const LINE = 16;
const STRAIGHT = 4; // a sideways step smaller than this is drawn as a line
const SLACK = 60; // pixels around what is seen that are drawn too
export const READABLE = 0.42; // below this scale labels are left out

/** The path of a route: straight through rows, an S between them. */
export function routePath(points) {
  let [x, y] = points;
  const parts = [`M${x} ${y}`];
  for (let i = 2; i < points.length; i += 2) {
    const [nextX, nextY] = [points[i], points[i + 1]];
    const isInRow = (i / 2) % 2 === 1;
    const middle = (y + nextY) / 2;
    if (isInRow || Math.abs(nextX - x) < STRAIGHT) parts.push(nextX === x && nextY === y ? "" : `L${nextX} ${nextY}`);
    else parts.push(`C${x} ${middle} ${nextX} ${middle} ${nextX} ${nextY}`);
    [x, y] = [nextX, nextY];
  }
  return parts.join("");
}

/** The path of an edge from one column to another. */
export const columnPath = ([x, y, endX, endY]) => `M${x} ${y}C${x} ${y + 60} ${endX} ${endY - 60} ${endX} ${endY}`;

/** The marker at the end of an arrow; `id` must be unique in the page. */
export const arrowHead = (id) => s("defs", {}, s("marker", {
  id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto",
}, s("path", { class: "arrow", d: "M0 .6 8 4 0 7.4 2 4z" })));

/** A box with its lines of text, its left top corner at the given place. */
export function boxElement([x, y, width, height], lines, attributes) {
  const top = y - height / 2;
  return s("g", { class: "node", ...attributes },
    s("rect", { x: x - width / 2, y: top, width, height, rx: 7 }),
    lines.map((line, i) => s("text", { x, y: top + 8 + LINE * (i + 0.75) }, line)));
}

function extent(points) {
  const box = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
  for (let i = 0; i < points.length; i += 2) {
    box.left = Math.min(box.left, points[i]);
    box.right = Math.max(box.right, points[i]);
    box.top = Math.min(box.top, points[i + 1]);
    box.bottom = Math.max(box.bottom, points[i + 1]);
  }
  return box;
}

const around = ([x, y, w, hgt]) => ({ left: x - w / 2, right: x + w / 2, top: y - hgt / 2, bottom: y + hgt / 2 });
const overlap = (a, b) => a.left <= b.right && a.right >= b.left && a.top <= b.bottom && a.bottom >= b.top;

/** Draws a layout into a group; `names` and `edges` say what its boxes and routes are. */
export class Drawing {
  constructor(layout, names, edges, arrowId) {
    this.far = new Set(layout.far);
    Object.assign(this, { layout, names, edges, arrowId, drawnNodes: new Map(), drawnEdges: new Map(), colours: [] });
    this.nodeExtents = layout.boxes.map(around);
    this.edgeExtents = layout.routes.map(extent);
    this.arrows = s("g", {});
    this.boxes = s("g", {});
    this.element = s("g", {}, this.arrows, this.boxes);
    this.classes = { selected: new Set(), near: new Set(), match: new Set(), nearEdges: new Set() };
  }

  /** Put in what `view` shows and take out what it does not. */
  update(view) {
    const slack = SLACK / view.k;
    const { left, top, right, bottom } = view.seen;
    const seen = { left: left - slack, top: top - slack, right: right + slack, bottom: bottom + slack };
    this.element.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.k})`);
    this.sync(this.drawnNodes, this.nodeExtents, seen, this.boxes, (i) => this.node(i));
    this.sync(this.drawnEdges, this.edgeExtents, seen, this.arrows, (i) => this.edge(i));
  }

  sync(drawn, extents, seen, parent, make) {
    const added = [];
    extents.forEach((box, i) => {
      const isSeen = overlap(box, seen);
      if (isSeen === drawn.has(i)) return;
      if (isSeen) {
        drawn.set(i, make(i));
        added.push(drawn.get(i));
      } else {
        drawn.get(i).remove();
        drawn.delete(i);
      }
    });
    parent.append(...added);
  }

  node(i) {
    const element = boxElement(this.layout.boxes[i], this.layout.lines[i], { "data-index": i, "data-name": this.names[i] });
    this.paint(element, i);
    return element;
  }

  edge(i) {
    const path = this.far.has(i) ? columnPath : routePath;
    const element = s("path", { d: path(this.layout.routes[i]), "marker-end": `url(#${this.arrowId})` });
    this.paintEdge(element, i);
    return element;
  }

  paint(element, i) {
    element.style.setProperty("--c", this.colours[i] ?? "var(--none)");
    for (const name of ["selected", "near", "match"]) element.classList.toggle(name, this.classes[name].has(i));
  }

  paintEdge(element, i) {
    element.setAttribute("class", `edge${this.far.has(i) ? " between" : ""}${this.classes.nearEdges.has(i) ? " near" : ""}`);
  }

  repaint() {
    for (const [i, element] of this.drawnNodes) this.paint(element, i);
    for (const [i, element] of this.drawnEdges) this.paintEdge(element, i);
  }

  colour(colours) {
    this.colours = colours;
    this.repaint();
  }

  /** Mark a box, its arrows and the boxes at their other ends. */
  select(index) {
    this.classes.selected = new Set(index === null ? [] : [index]);
    const touching = this.edges.map((edge, i) => [edge, i]).filter(([edge]) => edge.includes(index));
    this.classes.nearEdges = new Set(touching.map(([, i]) => i));
    this.classes.near = new Set(touching.flatMap(([edge]) => edge));
    this.repaint();
  }

  /** Mark the boxes a search found. */
  found(indices) {
    this.classes.match = new Set(indices);
    this.repaint();
  }

  /** The extent of some of the boxes together. */
  boundsOf(indices) {
    const boxes = indices.map((i) => this.nodeExtents[i]);
    const edge = (side, pick) => pick(...boxes.map((box) => box[side]));
    return { left: edge("left", Math.min), top: edge("top", Math.min), right: edge("right", Math.max), bottom: edge("bottom", Math.max) };
  }
}
