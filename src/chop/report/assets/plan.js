// A sharding plan: memory of a device, bytes per axis of the mesh, timeline of the stages.

import { h, s } from "./dom.js";
import { bytes, number, seconds, share } from "./format.js";
import { series } from "./colour.js";
import { hideTip, showTip } from "./tooltip.js";

const WIDE = 720;
const ROW = 26;
const LEFT = 74;

const key = (colour, name) => h("li", {}, h("span", { style: { width: "12px", height: "12px", "border-radius": "3px", background: colour } }), name);
const figure = (title, ...children) => h("figure", { class: "chart panel", style: { margin: 0 } }, h("h3", {}, title), children);
const told = (title, rows) => ({ onpointermove: (event) => showTip(event.clientX, event.clientY, title, rows), onpointerleave: hideTip });

/** Parts of the memory of a device in one bar, against its limit. */
export function memoryBar({ parts, limit }) {
  const total = parts.reduce((sum, part) => sum + part.bytes, 0);
  const most = Math.max(total, limit ?? 0, 1);
  let from = 0;
  const bars = parts.map((part, i) => {
    const x = (WIDE * from) / most;
    from += part.bytes;
    return s("rect", { x, y: 4, width: (WIDE * part.bytes) / most, height: ROW, style: { fill: series(i) }, ...told(part.part, [["bytes", bytes(part.bytes)], ["share", share(part.bytes / Math.max(total, 1))]]) });
  });
  const title = limit ? `A device needs ${bytes(total)} of ${bytes(limit)}` : `A device needs ${bytes(total)}`;
  const edge = limit ? s("line", { class: "cursor", x1: (WIDE * limit) / most, x2: (WIDE * limit) / most, y1: 0, y2: ROW + 8 }) : null;
  return figure(title, s("svg", { viewBox: `0 0 ${WIDE} ${ROW + 8}`, role: "img", "aria-label": title }, bars, edge),
    h("ul", { class: "keys" }, parts.map((part, i) => key(series(i), `${part.part} ${bytes(part.bytes)}`))));
}

/** Bytes that each device sends along each axis, by collective. */
export function trafficBars(rows) {
  const most = Math.max(...rows.map((row) => row.bytes), 1);
  const total = rows.reduce((sum, row) => sum + row.bytes, 0);
  const title = `Each device sends ${bytes(total)} in a step`;
  const cells = (row) => [h("td", {}, `axis ${row.axis} (${row.devices})`), h("td", { class: "mono" }, row.collective.replaceAll("_", " ")),
    h("td", { style: { width: "36%" } }, h("div", { style: { height: "12px", "border-radius": "3px", background: series(row.axis), width: `${(100 * row.bytes) / most}%` } })),
    h("td", { class: "num" }, bytes(row.bytes)), h("td", { class: "num" }, seconds(row.seconds)), h("td", { class: "num" }, number(row.calls))];
  const head = ["Axis (devices)", "Collective", "", "Bytes", "Time", "Calls"].map((name) => h("th", {}, name));
  return figure(title, h("table", { "aria-label": title }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map((row) => h("tr", {}, cells(row))))));
}

/** Forward and backward of every micro-batch on every stage. */
export function stageTimeline({ micro_batches: count, shown, seconds: step, bubble, events, stages }) {
  const end = Math.max(...events.map(([, , , , to]) => to), 1e-12);
  const place = (time) => LEFT + ((WIDE - LEFT) * time) / end;
  const colour = { forward: series(0), backward: series(1) };
  const bars = events.map(([stage, micro, kind, from, to]) => s("rect", {
    x: place(from), y: stage * ROW + 3, width: Math.max(0.4, place(to) - place(from) - 0.4), height: ROW - 6, rx: 2, style: { fill: colour[kind] },
    ...told(`${kind} of micro-batch ${micro}`, [["stage", number(stage)], ["from", seconds(from)], ["to", seconds(to)]]),
  }));
  const names = stages.map((stage, i) => s("g", told(`stage ${i}`, [["first", stage.first], ["last", stage.last], ["per micro-batch", seconds(stage.seconds)], ["memory", bytes(stage.memory_bytes)], ["in flight", number(stage.in_flight)]]),
    s("text", { x: 0, y: i * ROW + ROW / 2 + 4 }, `stage ${i}`)));
  const title = `A step takes ${seconds(step)}, ${share(bubble)} of it waiting`;
  const part = shown < count ? h("p", { class: "note" }, `The first ${number(shown)} of ${number(count)} micro-batches`) : null;
  return figure(title, s("svg", { viewBox: `0 0 ${WIDE} ${stages.length * ROW + 4}`, role: "img", "aria-label": title }, bars, names),
    h("ul", { class: "keys" }, Object.entries(colour).map(([name, each]) => key(each, name))), part);
}

/** Memory of the stages' devices. */
export function stageMemory(stages, limit) {
  const most = Math.max(...stages.map((stage) => stage.memory_bytes), limit ?? 0, 1);
  const title = "Memory of a device of each stage";
  const rows = stages.map((stage, i) => h("tr", {}, h("td", {}, `stage ${i}`), h("td", { class: "mono" }, `${stage.first} … ${stage.last}`),
    h("td", { style: { width: "36%" } }, h("div", { style: { height: "12px", "border-radius": "3px", background: series(2), width: `${(100 * stage.memory_bytes) / most}%` } })),
    h("td", { class: "num" }, bytes(stage.memory_bytes))));
  return figure(limit ? `${title}, of ${bytes(limit)}` : title, h("table", { "aria-label": title }, h("tbody", {}, rows)));
}
