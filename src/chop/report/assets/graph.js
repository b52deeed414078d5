// The graph: drawing, search, colours, selection and details brought together.

import { COLOURINGS, bitsScale } from "./colour.js";
import { choice, dropdown, h, s, section } from "./dom.js";
import { Drawing, READABLE, arrowHead } from "./drawing.js";
import { kindWord } from "./format.js";
import { blockDetails, graphDetails, nodeDetails } from "./inspector.js";
import { Minimap } from "./minimap.js";
import { Viewport } from "./viewport.js";

const ARROW = "graph-arrow";
const MOST_NODES = 500; // of a graph that opens as nodes

/** The sums over the nodes of each block, as if blocks were nodes. */
function blockNodes(blocks, nodes) {
  const sum = (members, key) => members.reduce((total, n) => total + (n[key] ?? 0), 0);
  return blocks.names.map((name, i) => {
    const members = blocks.members[i].map((m) => nodes[m]);
    const weights = members.filter((n) => n.parameters).sort((a, b) => b.parameters - a.parameters);
    const stored = sum(weights, "parameters");
    const zeros = weights.reduce((total, n) => total + (n.sparsity ?? 0) * n.parameters, 0);
    return {
      name, type: { placeholders: "placeholder", outputs: "output" }[name] ?? "module",
      format: weights[0]?.format, format_bits: weights[0]?.format_bits, sparsity: stored ? zeros / stored : undefined,
      parameters: sum(members, "parameters"), bytes: sum(members, "bytes"), flops: sum(members, "flops"),
    };
  });
}

/** By precision, unless every node of every graph has the same. */
function firstColouring(graphs) {
  const widths = new Set(graphs.flatMap((graph) => graph.nodes.map((n) => n.format_bits).filter(Boolean)));
  return widths.size > 1 ? "precision" : "kind";
}

/** Blocks of a graph whose nodes nobody could survey. */
function firstLevel(data) {
  const graph = data.graphs[data.graphs.length - 1];
  return graph.nodes.length > MOST_NODES && data.layouts[graph.layout].blocks ? "blocks" : "nodes";
}

export class GraphView {
  constructor(data, selection) {
    Object.assign(this, { data, selection, which: data.graphs.length - 1, level: firstLevel(data), colouring: firstColouring(data.graphs), query: "", hit: -1 });
    this.canvas = s("svg", { class: "canvas", tabindex: "0", role: "application", "aria-label": "Graph of the model. Arrow keys go from node to node." });
    this.view = new Viewport(this.canvas, () => this.moved());
    this.minimap = new Minimap(this.view);
    this.legend = h("div", { class: "legend" });
    this.details = h("aside", { class: "inspector", "aria-label": "Details", tabindex: "0" });
    this.said = h("p", { class: "unseen", role: "status" });
    this.element = section("graph", "Graph", null, h("div", { class: "panel" }, this.toolbar(), this.workbench()));
    this.listen();
    selection.listen((name, options) => this.selected(name, options));
  }

  get graph() { return this.data.graphs[this.which]; }
  get layouts() { return this.data.layouts[this.graph.layout]; }

  toolbar() {
    const { graphs } = this.data;
    this.matches = h("span", { class: "note", role: "status" });
    this.search = h("input", {
      class: "field", type: "search", placeholder: "Search nodes  ( / )", "aria-label": "Search nodes",
      oninput: () => this.find(this.search.value),
      onkeydown: (event) => { if (event.key === "Enter") this.nextMatch(event.shiftKey ? -1 : 1); },
    });
    const labels = graphs.map((g, i) => [i, g.label]);
    const colourings = Object.entries(COLOURINGS).map(([name, [title]]) => [name, title]);
    this.levels = choice("Level", [["nodes", "Nodes"], ["blocks", "Blocks"]], this.level, (level) => this.setLevel(level));
    return h("div", { class: "tools" },
      graphs.length > 1 ? choice("Graph", labels, this.which, (i) => this.setGraph(i)) : null,
      this.data.layouts.some((l) => l.blocks) ? this.levels : null,
      this.search, this.matches,
      h("span", { class: "spread" }, dropdown("Colour by", colourings, this.colouring, (name) => this.setColouring(name))));
  }

  workbench() {
    const zoomButton = (label, sign, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, sign);
    const zoom = h("div", { class: "zoom" },
      zoomButton("Zoom in", "+", () => this.view.zoom(1.4)),
      zoomButton("Zoom out", "−", () => this.view.zoom(1 / 1.4)),
      zoomButton("Fit the whole graph", "⤢", () => this.view.fit()));
    const hint = h("span", { class: "hint" }, "click, then scroll to zoom");
    this.stage = h("div", { class: "stage" }, this.canvas, zoom, this.minimap.element, hint, this.said);
    return h("div", { class: "workbench" }, h("div", { class: "board" }, this.stage, this.legend), this.details);
  }

  listen() {
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("dblclick", (event) => this.open(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    addEventListener("keydown", (event) => {
      if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) {
        event.preventDefault();
        this.search.focus();
      }
    });
    new ResizeObserver(() => this.resized()).observe(this.stage);
  }

  /** Draw for the first time, once in the page. */
  start() {
    this.rebuild();
    this.view.open(this.layout.boxes);
    this.showDetails(this.selection.name);
  }

  rebuild() {
    const { nodes, blocks } = this.layouts;
    if (!blocks) this.level = "nodes";
    const isBlocks = this.level === "blocks";
    this.items = isBlocks ? blockNodes(blocks, this.graph.nodes) : this.graph.nodes;
    this.layout = isBlocks ? blocks : nodes;
    this.number = new Map(this.items.map((item, i) => [item.name, i]));
    this.drawing = new Drawing(this.layout, this.items.map((item) => item.name), isBlocks ? blocks.edges : this.graph.edges, ARROW);
    this.canvas.replaceChildren(arrowHead(ARROW), this.drawing.element);
    this.view.size = { width: this.layout.width, height: this.layout.height };
    this.setColouring(this.colouring);
    this.drawing.select(this.number.get(this.selection.name) ?? null);
    this.find(this.query);
    this.view.changed();
  }

  setGraph(which) {
    const before = this.layout;
    this.which = which;
    this.rebuild();
    if (this.layout !== before) this.view.open(this.layout.boxes);
    this.showDetails(this.selection.name);
  }

  setLevel(level) {
    if (level === this.level) return;
    this.level = level;
    this.rebuild();
    this.view.open(this.layout.boxes);
  }

  setColouring(name) {
    this.colouring = name;
    const [title, make] = COLOURINGS[name];
    const meaning = make(this.items);
    this.colours = this.items.map(meaning.colourOf);
    this.drawing.colour(this.colours);
    this.drawMap();
    const scale = meaning.hasBits ? bitsScale() : null;
    this.legend.replaceChildren(...[h("strong", {}, title), scale, meaning.ends ? this.rampLegend(meaning.ends) : this.keyLegend(meaning.keys)].filter(Boolean));
  }

  rampLegend(ends) {
    return h("div", {}, h("div", { class: "ramp" }), h("div", { class: "ends" }, ends.map((end) => h("span", {}, end))));
  }

  keyLegend(keys) {
    return h("ul", {}, keys.map(({ label, count, colour }) =>
      h("li", {}, h("span", { class: "swatch", style: { "--c": colour } }), label, h("span", { class: "count" }, String(count)))));
  }

  drawMap() {
    this.minimap.draw(this.layout, this.colours, Math.max(100, this.stage.clientHeight - 24));
  }

  resized() {
    if (!this.layout) return;
    this.drawMap();
    this.view.changed();
  }

  moved() {
    this.canvas.classList.toggle("far", this.view.k < READABLE);
    this.drawing.update(this.view);
    this.minimap.update();
  }

  click(event) {
    if (this.view.isDragged) return;
    const name = event.target.closest?.(".node")?.dataset.name;
    this.canvas.focus();
    this.selection.set(name ?? null);
  }

  open(event) {
    const name = event.target.closest?.(".node")?.dataset.name;
    if (name !== undefined && this.level === "blocks") this.openBlock(name);
  }

  openBlock(name) {
    const { blocks } = this.layouts;
    const members = blocks.members[blocks.names.indexOf(name)];
    this.levels.pick("nodes");
    this.view.show(this.drawing.boundsOf(members));
  }

  /** Mark the nodes whose name, target, op, type or format has the words. */
  find(query) {
    this.query = query;
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const about = (item) => [item.name, item.target, item.op, kindWord(item.type), item.type, item.format, item.hardware?.module].join(" ").toLowerCase();
    this.found = words.length ? this.items.flatMap((item, i) => (words.every((w) => about(item).includes(w)) ? [i] : [])) : [];
    this.hit = -1;
    this.canvas.classList.toggle("searching", words.length > 0);
    this.drawing.found(this.found);
    this.matches.textContent = words.length ? `${this.found.length} of ${this.items.length}` : "";
  }

  nextMatch(step) {
    if (!this.found.length) return;
    this.hit = (this.hit + step + this.found.length) % this.found.length;
    this.selection.set(this.items[this.found[this.hit]].name, { isMoving: true });
  }

  selected(name, { isMoving } = {}) {
    if (name !== null && !this.number.has(name)) {
      if (this.level === "blocks" && this.graph.nodes.some((n) => n.name === name)) this.levels.pick("nodes");
      else if (!this.number.has(name)) name = null;
    }
    const index = name === null ? null : this.number.get(name);
    this.drawing.select(index);
    if (isMoving && index !== null) this.bring(this.layout.boxes[index]);
    this.showDetails(name);
  }

  bring(box) {
    if (!this.view.shows(box, READABLE)) this.view.centre(box[0], box[1]);
  }

  showDetails(name) {
    const index = this.number.get(name);
    const go = (next) => this.selection.set(next, { isMoving: true });
    let parts = graphDetails(this.graph);
    if (index !== undefined && this.level === "blocks") {
      const members = this.layouts.blocks.members[index].map((m) => this.graph.nodes[m].name);
      parts = blockDetails(this.items[index], members, () => this.openBlock(name), go);
    } else if (index !== undefined) {
      parts = nodeDetails(this.items[index], this.links(index), this.counterpart(name), this.labels(), go);
    }
    this.details.replaceChildren(...parts.filter(Boolean));
    this.details.scrollTop = 0;
    const item = this.items[index];
    this.said.textContent = item ? `${item.name}, ${[item.op, item.format].filter(Boolean).join(", ")}` : "";
  }

  links(index) {
    const nameOf = (i) => this.items[i].name;
    const { edges } = this.drawing;
    return { inputs: edges.filter(([, t]) => t === index).map(([f]) => nameOf(f)), users: edges.filter(([f]) => f === index).map(([, t]) => nameOf(t)) };
  }

  get otherGraph() {
    const { graphs } = this.data;
    return graphs.length > 1 ? graphs[this.which === 0 ? graphs.length - 1 : 0] : null;
  }

  counterpart(name) { return this.otherGraph?.nodes.find((n) => n.name === name); }
  labels() { return { own: this.graph.label, other: this.otherGraph?.label }; }

  key(event) {
    const acts = {
      ArrowUp: () => this.step(0), ArrowDown: () => this.step(1),
      ArrowLeft: () => this.aside(-1), ArrowRight: () => this.aside(1),
      "+": () => this.view.zoom(1.3), "=": () => this.view.zoom(1.3), "-": () => this.view.zoom(1 / 1.3),
      0: () => this.view.fit(), Escape: () => this.selection.set(null),
      Enter: () => { if (this.level === "blocks" && this.number.has(this.selection.name)) this.openBlock(this.selection.name); },
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  /** Along an edge: up (0) to the first input, down (1) to the first user. */
  step(end) {
    const index = this.number.get(this.selection.name);
    if (index === undefined) return this.selection.set(this.items[0].name, { isMoving: true });
    const edge = this.drawing.edges.find((pair) => pair[1 - end] === index);
    return edge && this.selection.set(this.items[edge[end]].name, { isMoving: true });
  }

  /** To the next box of the same row. */
  aside(sign) {
    const index = this.number.get(this.selection.name);
    if (index === undefined) return;
    const { boxes } = this.layout;
    const [x, y] = boxes[index];
    const row = boxes.flatMap(([bx, by], i) => (Math.abs(by - y) < 2 && sign * (bx - x) > 0 ? [[sign * (bx - x), i]] : []));
    const nearest = row.sort((a, b) => a[0] - b[0])[0];
    if (nearest) this.selection.set(this.items[nearest[1]].name, { isMoving: true });
  }
}
