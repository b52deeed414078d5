// The table of layers: one graph, or two side by side.

import { h, section } from "./dom.js";
import { bytes, count, digits, number, share } from "./format.js";
import { Table } from "./table.js";

const FACT_COLUMNS = [
  ["format", "Precision", "mono", (v) => v],
  ["bits", "Bits / weight", "num", (v) => digits(v)],
  ["bytes", "Stored", "num", bytes],
  ["sparsity", "Sparsity", "num", share],
  ["parameters", "Parameters", "num", number],
  ["flops", "FLOPs", "num", count],
];

const factOf = (row, key) => (row.after ?? row.before)[key];

/** Whether a fact tells something: that no weight is zero, of every layer, does not. */
const tells = (layers, key) => layers.some((row) => [row.before, row.after].some((side) => (key === "sparsity" ? side?.[key] : side?.[key] !== undefined)));

function factColumn([key, title, kind, show]) {
  const cell = (row) => {
    const [was, now] = [row.before?.[key], row.after?.[key]];
    if (!row.before || !row.after || was === now) return factOf(row, key) === undefined ? "" : show(factOf(row, key));
    return h("span", {}, h("span", { class: "was" }, was === undefined ? "–" : show(was)), now === undefined ? "–" : show(now));
  };
  return { title, kind, cell, value: (row) => factOf(row, key) };
}

function stateOf(row) {
  if (!row.before) return "new";
  if (!row.after) return "gone";
  return row.is_changed ? "changed" : "same";
}

/** The section, whose rows select nodes. */
export function layersSection(data, selection) {
  const { layers, graphs } = data;
  const isPair = graphs.length > 1;
  const columns = [
    { title: "Layer", kind: "mono", value: (row) => row.name },
    { title: "Op", kind: "mono", value: (row) => row.op },
    ...FACT_COLUMNS.filter(([key]) => tells(layers, key)).map(factColumn),
    ...(isPair ? [{ title: "State", value: stateOf }] : []),
  ];
  const only = h("input", { type: "checkbox", onchange: () => { table.keep = (row) => !only.checked || row.is_changed; table.draw(); } });
  const table = new Table({
    label: "layers", columns, rows: layers, nameOf: (row) => row.name,
    isEmpty: (row) => factOf(row, "parameters") === undefined, emptyWords: "more that store no weights",
    extra: isPair ? [h("label", { class: "label" }, only, "changed only")] : [],
    onpick: (row) => {
      selection.set(row.name, { isMoving: true });
      document.getElementById("graph").scrollIntoView({ block: "nearest" });
    },
  });
  selection.listen((name) => table.mark(name));
  const changed = layers.filter((row) => row.is_changed).length;
  const note = isPair
    ? `${graphs[0].label} → ${graphs.at(-1).label}: ${changed} of ${layers.length} layers changed.`
    : "Everything that computes or stores something. A click shows it in the graph.";
  return section("layers", isPair ? "Before and after" : "Layers", note, table.element);
}
