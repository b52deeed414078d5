// What other runs measured: calibration, generation, sharding.

import { factList, h, section } from "./dom.js";
import { bytes, count, digits, number, seconds, text } from "./format.js";
import { memoryBar, stageMemory, stageTimeline, trafficBars } from "./plan.js";
import { Table } from "./table.js";

const isNumber = (value) => typeof value === "number";

/** A column for each key of the rows; `names` says what a key is called and how it is written. */
function recordColumns(rows, names) {
  const keys = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return keys.map((key) => {
    const isNumeric = rows.some((row) => isNumber(row[key]));
    const [title, show] = names[key] ?? [key.replaceAll("_", " "), isNumeric ? (v) => digits(v) : text];
    return { title, kind: isNumeric ? "num" : "mono", value: (row) => row[key], cell: (row) => (row[key] === undefined || row[key] === null ? "" : show(row[key])) };
  });
}

const decibels = (value) => `${value.toFixed(1)}\u202fdB`;
const CALIBRATION = {
  node: ["Layer", text], operand: ["Operand", text], low: ["Lowest", digits], high: ["Highest", digits],
  frac_width: ["Bits after the point", number], plain: ["Signal to noise, to the nearest", decibels],
  rounded: ["Signal to noise, by effect", decibels], module: ["Path", text],
};

/** What calibration saw and chose: ranges of operands, and how well layers were rounded. */
export function calibrationSection(tables) {
  const made = tables.map(({ title, rows }) => h("div", {}, h("h3", { style: { "margin-bottom": "8px" } }, title),
    new Table({ label: title.toLowerCase(), rows, nameOf: (row) => row.node, columns: recordColumns(rows, CALIBRATION) }).element));
  return section("calibration", "Calibration", null, h("div", { class: "stack" }, made));
}

function oneText({ model, text: written, tokens_per_s: pace, first_s: first, new_tokens: tokens, weight_bytes: weights, cache_bytes: cache }) {
  return h("div", { class: "panel pad stack" }, h("h3", {}, model ?? "generation"),
    factList([
      ["speed", pace ? `${digits(pace, 3)} tokens/s` : undefined], ["first token", first === undefined ? undefined : seconds(first)],
      ["tokens", tokens === undefined ? undefined : number(tokens)], ["weights", weights ? bytes(weights) : undefined],
      ["cache", cache ? bytes(cache) : undefined],
    ]),
    written ? h("blockquote", { class: "written" }, written) : null);
}

/** What models wrote, how fast and in how much memory. */
export const generationSection = (runs) => section("generation", "Generation", null, h("div", { class: "columns level" }, runs.map(oneText)));

/** A value with its unit, in the unit a person reads: memory in bytes, times in seconds. */
function measured({ value, unit }) {
  if (unit === "MB") return bytes(value * 1e6);
  return unit === "ms" ? seconds(value / 1e3) : `${number(value)} ${unit ?? ""}`;
}

function meshText(mesh) {
  const sizes = mesh.map(Number);
  return `${sizes.join(" × ")} (${count(sizes.reduce((a, b) => a * b, 1))} devices)`;
}

/** Pictures of a plan; a pipeline's memory differs by stage. */
function pictures({ memory, traffic, timeline }) {
  return [timeline && stageTimeline(timeline), timeline && stageMemory(timeline.stages, memory?.limit),
    !timeline && memory && memoryBar(memory), traffic?.length ? trafficBars(traffic) : null].filter(Boolean);
}

/** How a model is split over devices, and what that costs by the plan. */
export function shardingSection({ mesh, cost, verification, splits, memory, traffic, timeline }) {
  const facts = factList([["mesh", meshText(mesh)], ...cost.map((row) => [row.measure, measured(row)]),
    ["verified", verification ? text(verification.equal ?? verification.is_equal ?? verification) : "not run"]]);
  const rows = splits ?? [];
  const isSplit = rows.some((row) => !row.is_whole);
  const table = isSplit ? new Table({
    label: "how nodes are split", rows, nameOf: (row) => row.node,
    isEmpty: (row) => row.is_whole, emptyWords: "more that every device has whole",
    columns: [
      { title: "Node", kind: "mono", value: (row) => row.node },
      { title: "Strategy", value: (row) => row.strategy },
      { title: "Result", kind: "mono", value: (row) => row.result },
    ],
  }).element : h("p", { class: "note" }, "Every device has every node whole.");
  return section("sharding", "Sharding", "The cost is that of the plan's model of the devices.", h("div", { class: "stack" }, h("div", { class: "panel pad" }, facts), pictures({ memory, traffic, timeline }), table));
}
