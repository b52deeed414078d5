// Reports side by side: a table of what each measured, and accuracy against size.

import { Chart } from "./chart.js";
import { bitsColour, bitsScale, series } from "./colour.js";
import { h, section } from "./dom.js";
import { UNIT, named } from "./format.js";
import { scroller } from "./table.js";

const show = ({ name, unit }, value) => {
  if (value === undefined || value === null) return "–";
  if (typeof value !== "number") return String(value);
  return unit === "share" ? named("share", value) : UNIT[unit ?? "number"](value);
};

/** Numbers of the best reports by a measure; nothing where it has no better end or all are equal. */
function bestOf({ better, values }) {
  const given = values.filter((v) => typeof v === "number");
  if (!better || new Set(given).size < 2) return new Set();
  const best = (better === "higher" ? Math.max : Math.min)(...given);
  return new Set(values.flatMap((v, i) => (v === best ? [i] : [])));
}

function measureTable({ reports, measures }) {
  const best = measures.map(bestOf);
  const head = h("tr", {}, h("th", { scope: "col" }, "Report"), measures.map((m) =>
    h("th", { scope: "col", class: "num" }, m.name, m.better ? h("span", { class: "note" }, m.better === "higher" ? " ↑" : " ↓") : null)));
  const rows = reports.map((report, i) => h("tr", {},
    h("th", { scope: "row", title: report.place }, h("span", { class: "swatch inline", style: { "--c": series(i) } }), report.title),
    measures.map((m, k) => h("td", { class: best[k].has(i) ? "num best" : "num" }, show(m, m.values[i])))));
  return h("div", { class: "panel" }, scroller("Measures of the reports", h("table", { class: "compared", "aria-label": "Measures" }, h("thead", {}, head), h("tbody", {}, rows))));
}

/** Accuracy, or the first measure for which more is better, over each measure of size that is known. */
function trade({ reports, measures }) {
  const up = measures.find((m) => m.better === "higher");
  const has = (m) => m.values.filter((v, i) => typeof v === "number" && typeof up.values[i] === "number").length > 1;
  const across = up ? measures.filter((m) => m.better === "lower" && has(m)).slice(0, 2) : [];
  return across.map((m) => new Chart({
    title: `${up.name[0].toUpperCase()}${up.name.slice(1)} over ${m.name}`, x: m.name, y: up.name,
    series: reports.flatMap((report, i) => (typeof m.values[i] === "number" && typeof up.values[i] === "number" ? [{
      label: report.title, colour: series(i), shape: "points", size: 6, isNamed: true, points: [{ x: m.values[i], y: up.values[i], title: report.title }],
    }] : [])),
  }).element);
}

/** The format of each layer in each report, coloured by its bits. */
function layerMap({ reports, layers }) {
  if (!layers?.length) return null;
  const head = h("tr", {}, h("th", { scope: "col" }, "Layer"), reports.map((r) => h("th", { scope: "col" }, r.title)));
  const cell = (told) => (told ? h("td", {}, h("span", { style: { "--c": bitsColour(told.bits) } }, told.format)) : h("td", {}, "–"));
  const rows = layers.map(({ name, formats }) => h("tr", {}, h("th", { scope: "row" }, name), formats.map(cell)));
  const table = h("table", { "aria-label": "Precision of each layer" }, h("thead", {}, head), h("tbody", {}, rows));
  return h("div", { class: "panel pad" }, h("h3", {}, "Precision of each layer"), bitsScale(), h("div", { class: "map" }, scroller("Precision of each layer", table)));
}

/** The section: measures first, then how they trade, then layers. */
export function comparisonSection(comparison) {
  const charts = trade(comparison);
  const note = "The best value of each measure is marked; ↑ more is better, ↓ less is better.";
  return section("comparison", "Side by side", note, h("div", { class: "stack" },
    measureTable(comparison), charts.length ? h("div", { class: "columns" }, charts) : null, layerMap(comparison)));
}
