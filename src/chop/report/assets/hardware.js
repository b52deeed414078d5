// The hardware: verdict, pace, block diagram with the bottleneck, and a table of stages.

import { Chart } from "./chart.js";
import { series } from "./colour.js";
import { factList, h, s, section } from "./dom.js";
import { arrowHead, boxElement, columnPath, routePath } from "./drawing.js";
import { digits, number, separated, shape, share } from "./format.js";
import { Table } from "./table.js";
import { hideTip, showTip } from "./tooltip.js";

const ARROW = "hardware-arrow";

function tellStage(stage) {
  return [
    ["module", stage.module], ["shape", stage.shape], ["format", stage.format],
    ["cycles per tensor", number(stage.cycles)], ["busy", share(stage.utilisation)],
    ["multipliers", stage.multipliers ? number(stage.multipliers) : undefined],
    ["memory", stage.memory_bits ? `${number(stage.memory_bits)} bits` : undefined],
    ["depth", stage.depth ? `${number(stage.depth)} beats` : undefined],
  ];
}

function colourOf(stage) {
  if (!stage) return "var(--c3)";
  return stage.multipliers ? "var(--c0)" : "var(--c7)";
}

function diagram({ boxes, layout, stages, streams, bottleneck }) {
  const rows = new Map(stages.map((stage) => [stage.stage, stage]));
  const drawn = layout.boxes.map((box, i) => {
    const stage = rows.get(boxes[i]);
    const tell = (event) => stage && showTip(event.clientX, event.clientY, stage.stage, tellStage(stage));
    const isSlowest = boxes[i] === bottleneck;
    const drawnBox = boxElement(box, layout.lines[i], {
      class: isSlowest ? "node bottleneck" : "node", "data-name": boxes[i], style: { "--c": colourOf(stage) },
      onpointermove: tell, onpointerleave: hideTip,
    });
    return stage?.link ? s("a", { href: stage.link, "aria-label": `RTL of ${stage.stage}` }, drawnBox) : drawnBox;
  });
  const far = new Set(layout.far);
  const arrows = layout.routes.map((route, i) => s("path", { class: "edge", d: (far.has(i) ? columnPath : routePath)(route), "marker-end": `url(#${ARROW})` }));
  const widths = layout.routes.map((route, i) => {
    const [x, y] = far.has(i) ? [route[0], route[1] + 12] : [(route[2] + route[4]) / 2, (route[3] + route[5]) / 2];
    return s("text", { class: "width", x: x + 8, y: y + 4 }, `${streams[i].lanes} × ${streams[i].width} bit`);
  });
  return s("svg", { width: layout.width, height: layout.height, viewBox: `0 0 ${layout.width} ${layout.height}`, role: "img", "aria-label": `Block diagram; the bottleneck is ${bottleneck}` },
    arrowHead(ARROW), arrows, widths, drawn);
}

function pace({ summary, bottleneck, interval, stages, area, routed }) {
  const multipliers = stages.reduce((sum, stage) => sum + stage.multipliers, 0);
  const cells = area ? ["lut", "ff", "dsp", "lutram", "bram"].map((name) => [name.toUpperCase(), area[name] ? number(area[name]) : undefined]) : [];
  return factList([
    ["bottleneck", h("strong", {}, bottleneck)],
    ["folding bound", `${number(interval)} cycles per tensor`],
    ["predicted interval", summary ? `${digits(summary.predicted_interval)} cycles` : undefined],
    ["simulated interval", summary?.simulated_interval ? `${digits(summary.simulated_interval)} cycles` : undefined],
    ["simulated latency", summary ? `${number(summary.simulated_latency)} cycles to the first beat` : undefined],
    ["cycle model", summary ? `${number(summary.beats_as_predicted)} of ${number(summary.beats_compared)} beats in the predicted cycle` : undefined],
    ["multipliers", number(multipliers)],
    ...cells,
    ["device family", area?.family],
    ...onThePart(routed),
  ]);
}

/** What place and route found: clock, cells in use, the stages of the slowest path. */
function onThePart(routed) {
  if (!routed) return [];
  const used = Object.entries(routed.used).map(([kind, count]) => [`${kind.toUpperCase()} in use`, `${number(count)} of ${number(routed.available[kind])}`]);
  const stages = [...new Set(routed.path.map((step) => step.stage))].join(" → ");
  const slowest = routed.path.reduce((a, b) => (b.nanoseconds > a.nanoseconds ? b : a), { nanoseconds: 0 });
  return [
    ["part", `${routed.part} (${routed.device})`],
    ["routed clock", `${digits(routed.mhz, 4)} MHz (${Object.values(routed.clocks).map((mhz) => digits(mhz, 4)).join(", ")} by seed)`],
    ["tensors per second", number(Math.round(routed.tensors_per_second))],
    ...used,
    ["slowest path", stages ? `${stages}; most of it ${slowest.where}` : undefined],
    ["netlist", routed.simulated ? separated(routed.simulated) : "not simulated"],
    ["bitstream", routed.bitstream],
  ];
}

const GIGA = 1e9;
const REACH = 8; // how far, as a factor, the roofs are drawn to both sides

/** What the part and the ports allow, and where the design is: products per second over products per byte. */
function roofs({ part, mhz, reached, intensity, part_roof: top, design_roof: own, bandwidth }) {
  const ridge = top / bandwidth;
  const [low, high] = [Math.min(intensity, ridge) / REACH, Math.max(intensity, ridge) * REACH];
  const point = (x, y, title) => ({ x, y: y / GIGA, title, facts: [["products per byte", digits(x, 3)], ["G products/s", digits(y / GIGA, 3)]] });
  const flat = (y, from, title) => [point(from, y, title), point(high, y, title)];
  const curves = [
    { label: `streams of the design, ${digits(bandwidth / GIGA, 3)} GB/s`, colour: series(1), points: [point(low, low * bandwidth, "streams"), point(ridge, top, "streams")], size: 2 },
    { label: `all multipliers of ${part}`, colour: series(2), points: flat(top, ridge, `all multipliers of ${part}`), size: 2 },
    ...(own ? [{ label: "multipliers of the design", colour: "var(--c7)", points: flat(own, own / bandwidth, "multipliers of the design"), size: 2 }] : []),
    { label: "this design", colour: series(0), points: [point(intensity, reached, "this design")], shape: "points", size: 6, isNamed: true },
  ];
  const of = (share_) => `${digits(100 * share_, 2)} %`;
  const told = own ? `${of(reached / top)} of the part, ${of(reached / own)} of its own multipliers` : "without multipliers";
  return new Chart({ title: `Roofline at ${digits(mhz, 4)} MHz: ${told}`, x: "products per byte streamed", y: "G products/s", series: curves, isLog: true, isLogUp: true }).element;
}

/** The name of a stage, which leads to its RTL where that is known. */
function stageName({ stage, link }, bottleneck) {
  const name = link ? h("a", { href: link }, stage) : stage;
  return stage === bottleneck ? h("strong", {}, name, " (bottleneck)") : name;
}

function stageTable(stages, bottleneck) {
  return new Table({
    label: "stages", rows: stages, nameOf: (stage) => stage.stage,
    columns: [
      { title: "Stage", kind: "mono", value: (r) => r.stage, cell: (r) => stageName(r, bottleneck) },
      { title: "Module", kind: "mono", value: (r) => r.module },
      { title: "Shape", kind: "mono", value: (r) => r.shape },
      { title: "Format", kind: "mono", value: (r) => r.format },
      { title: "Lanes", kind: "num", value: (r) => r.lanes_in, cell: (r) => `${r.lanes_in} → ${r.lanes_out}` },
      { title: "Cycles", kind: "num", value: (r) => r.cycles, cell: (r) => number(r.cycles) },
      { title: "Busy", kind: "num", value: (r) => r.utilisation, cell: (r) => share(r.utilisation) },
      { title: "FIFO", kind: "num", value: (r) => r.depth, cell: (r) => (r.depth ? number(r.depth) : "") },
      { title: "Multipliers", kind: "num", value: (r) => r.multipliers || undefined, cell: (r) => (r.multipliers ? number(r.multipliers) : "") },
      { title: "Memory bits", kind: "num", value: (r) => r.memory_bits || undefined, cell: (r) => (r.memory_bits ? number(r.memory_bits) : "") },
    ],
  }).element;
}

/** The section about a design. */
export function hardwareSection(hardware) {
  const { verdict, stages, bottleneck, inputs, roofline } = hardware;
  const ports = Object.entries(inputs ?? {}).map(([name, { shape: sizes, format }]) => `${name} ${shape(sizes)} ${format}`);
  const told = verdict
    ? h("p", { class: verdict.is_exact ? "verdict" : "verdict wrong" }, separated(verdict.text))
    : h("p", { class: "note" }, "Not simulated.");
  const picture = h("div", { class: "panel blocks", tabindex: "0", role: "region", "aria-label": "Block diagram" }, diagram(hardware));
  const side = h("div", { class: "panel pad stack" }, told, pace(hardware), h("p", { class: "note" }, ports.join("; ")));
  return section("hardware", "Hardware", null, h("div", { class: "stack" }, h("div", { class: "columns" }, picture, side), roofline ? roofs(roofline) : null, stageTable(stages, bottleneck)));
}
