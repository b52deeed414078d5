// Where the results come from.

import { factList, h, section } from "./dom.js";
import { text } from "./format.js";

const isMapping = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function show(value) {
  if (isMapping(value)) return factList(Object.entries(value).map(([name, each]) => [name, show(each)]));
  const lines = Array.isArray(value) ? value.map(text).join("\n") : typeof value === "string" ? value : text(value);
  return h("pre", {}, lines);
}

export function provenanceSection(provenance) {
  const entries = Object.entries(provenance);
  const flat = entries.filter(([, value]) => !isMapping(value));
  const nested = entries.filter(([, value]) => isMapping(value));
  const panel = (title, value) => h("div", { class: "panel pad" }, h("h3", { style: { "margin-bottom": "8px" } }, title), show(value));
  return section("provenance", "Provenance", null, h("div", { class: "columns" },
    flat.length ? panel("Run", Object.fromEntries(flat)) : null,
    nested.map(([name, value]) => panel(name[0].toUpperCase() + name.slice(1), value))));
}
