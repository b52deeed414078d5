// All that is known of the selected node, or of the graph where none is.

import { histogramOf } from "./bars.js";
import { factList, h } from "./dom.js";
import { bytes, count, digits, kindWord, number, shape, share, text } from "./format.js";

function valueTable(title, values) {
  if (!values?.length) return [];
  const row = (v) => h("tr", {}, [v.name, shape(v.shape), v.dtype, v.format].map((cell) => h("td", {}, cell)));
  const head = ["name", "shape", "dtype", "precision"].map((name) => h("th", { scope: "col" }, name));
  return [h("h3", {}, title), h("table", { "aria-label": title }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, values.map(row)))];
}

function pairs(title, mapping) {
  const entries = Object.entries(mapping ?? {});
  return entries.length ? [h("h3", {}, title), factList(entries.map(([name, value]) => [name, h("code", {}, text(value))]))] : [];
}

function weightPart(node) {
  if (!node.weight) return [];
  const { weight } = node;
  return [
    h("h3", {}, "Weight"),
    factList([
      ["shape", shape(weight.shape)],
      ["range", `${digits(weight.low, 3)} … ${digits(weight.high, 3)}`],
      ["mean", digits(weight.mean, 3)],
      ["sparsity", share(node.sparsity)],
    ]),
    weight.histogram ? histogramOf(weight.histogram) : null,
  ];
}

function hardwarePart(hardware) {
  if (!hardware) return [];
  const { module, parallelism, cost, verilog_param: parameters, interface: memories, dependence_files: files } = hardware;
  return [
    h("h3", {}, "Hardware"),
    factList([
      ["RTL module", h("code", {}, module)],
      ["parallelism", parallelism ? text(parallelism) : undefined],
      ...Object.entries(cost ?? {}).map(([name, value]) => [name, number(value)]),
      ["files", files?.join(", ")],
    ]),
    ...pairs("RTL parameters", parameters),
    ...pairs("Memories", memories),
  ];
}

function linkList(title, names, go) {
  if (!names.length) return [];
  const items = names.map((name) => h("li", {}, h("button", { class: "link", type: "button", onclick: () => go(name) }, name)));
  return [h("h3", {}, title), h("ul", {}, items)];
}

const FACTS = [["format", String], ["bits", digits], ["bytes", bytes], ["sparsity", share]];

function changes(node, other, labels) {
  const differing = FACTS.filter(([key]) => other && node[key] !== other[key] && (node[key] ?? other[key]) !== undefined);
  if (!differing.length) return [];
  const say = (each, key, show) => (each[key] === undefined ? "–" : show(each[key]));
  const rows = differing.map(([key, show]) => h("tr", {}, h("td", {}, key), h("td", {}, say(other, key, show)), h("td", {}, say(node, key, show))));
  const head = ["", labels.other, labels.own].map((name) => h("th", { scope: "col" }, name));
  return [h("h3", {}, "Compared"), h("table", { "aria-label": "Compared" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))];
}

/** The details of a node: `links` are its neighbours, `other` the same node of the other graph. */
export function nodeDetails(node, links, other, labels, go) {
  const chips = [node.op, kindWord(node.type), node.format].filter(Boolean);
  return [
    h("h2", { tabindex: "-1" }, node.name),
    h("div", { class: "chips" }, [...new Set(chips)].map((chip) => h("span", { class: "chip" }, chip))),
    factList([
      ["path", node.target !== node.name ? h("code", {}, node.target) : undefined],
      ["in module", node.module ? h("code", {}, node.module) : undefined],
      ["parameters", node.parameters && number(node.parameters)],
      ["stored", node.bytes && `${bytes(node.bytes)} (${digits(node.bits, 4)} bits each)`],
      ["FLOPs", node.flops && count(node.flops)],
      ["MACs", node.macs && count(node.macs)],
      ["bytes moved", node.bytes_moved && bytes(node.bytes_moved)],
    ]),
    ...changes(node, other, labels),
    ...valueTable("Arguments", node.args),
    ...valueTable("Results", node.results),
    ...weightPart(node),
    ...hardwarePart(node.hardware),
    ...pairs("Settings", node.settings),
    ...linkList("Reads from", links.inputs, go),
    ...linkList("Read by", links.users, go),
    h("h3", {}, "In the IR"),
    factList([["MASE type", h("code", {}, node.type)], ["FX node", h("code", {}, node.kind)]]),
  ];
}

/** What is shown of a block: the sums over its nodes. */
export function blockDetails(block, members, show, go) {
  return [
    h("h2", { tabindex: "-1" }, block.name),
    h("div", { class: "chips" }, h("span", { class: "chip" }, "block"), block.format ? h("span", { class: "chip" }, block.format) : null),
    factList([
      ["nodes", number(members.length)],
      ["parameters", block.parameters && number(block.parameters)],
      ["stored", block.bytes && bytes(block.bytes)],
      ["FLOPs", block.flops && count(block.flops)],
      ["sparsity", block.sparsity !== undefined ? share(block.sparsity) : undefined],
    ]),
    h("p", {}, h("button", { class: "button", type: "button", onclick: show, style: { "margin-top": "12px" } }, "Show its nodes")),
    ...linkList("Nodes", members, go),
  ];
}

/** What is shown while nothing is selected. */
export function graphDetails(graph) {
  const { totals } = graph;
  return [
    h("h2", {}, graph.model || graph.label),
    h("div", { class: "chips" }, h("span", { class: "chip" }, graph.label)),
    factList([
      ["nodes", number(totals.nodes)],
      ["edges", number(graph.edges.length)],
      ["parameters", totals.parameters ? number(totals.parameters) : undefined],
      ["stored", totals.parameters ? bytes(totals.bytes) : undefined],
      ["bits per weight", totals.bits ? digits(totals.bits) : undefined],
      ["weight sparsity", totals.sparsity !== null ? share(totals.sparsity) : undefined],
      ["FLOPs", totals.flops ? count(totals.flops) : undefined],
    ]),
    h("h3", {}, "Getting around"),
    factList([
      ["click", "select a node"],
      ["drag, wheel", "move and zoom, once the graph was clicked"],
      ["↑ ↓ ← →", "go along edges and rows"],
      ["+  −  0", "zoom in, out, fit"],
      ["/", "search"],
      ["Esc", "select nothing"],
    ]),
  ];
}
