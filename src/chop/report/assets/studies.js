// Searches: curves of the best so far, Pareto fronts, importances, the precision map and trials.

import { shareBars } from "./bars.js";
import { Chart } from "./chart.js";
import { bitsColour, series } from "./colour.js";
import { h, section } from "./dom.js";
import { bitsText, isShare, named, seconds, text } from "./format.js";
import { ParetoChart, trialDetails, trialPoint } from "./pareto.js";
import { Table } from "./table.js";

const COLUMNS = 12; // trials of a precision map

/** Best-so-far curves of every study that has an objective, in one chart. */
function bestChart(objective, studies) {
  const direction = studies[0].objectives[objective] === "maximize" ? "higher" : "lower";
  const curves = studies.map((study, i) => {
    const last = Math.max(...study.trials.map((t) => t.number));
    const points = study.best[objective].map(([x, y]) => trialPoint(study.trials.find((t) => t.number === x) ?? { number: x }, x, y));
    const end = points.at(-1);
    const whole = end && end.x < last ? [...points, { ...end, x: last }] : points;
    return { label: `${study.name}${study.sampler ? ` (${study.sampler})` : ""}`, colour: series(i), points: whole, shape: "steps", size: 3.5, isNamed: studies.length > 1 };
  });
  return new Chart({ title: `Best ${objective} so far (${direction} is better)`, x: "trial", y: objective, series: curves }).element;
}

/** Which value each parameter has along the front: rows are parameters, columns are trials. */
function precisionMap(study) {
  const byNumber = new Map(study.trials.map((t) => [t.number, t]));
  const all = study.front.map((n) => byNumber.get(n));
  const every = Math.max(1, Math.ceil(all.length / COLUMNS));
  const shown = all.filter((_, i) => i % every === 0);
  const names = [...new Set(shown.flatMap((t) => Object.keys(t.params ?? {})))];
  if (names.length < 2 || shown.length < 2) return null;
  const values = [...new Set(shown.flatMap((t) => names.map((n) => t.params?.[n])))].filter((v) => v !== undefined);
  if (values.length > 24) return null; // continuous parameters make no map
  values.sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))));
  const areWidths = values.every((v) => typeof v === "number" && v > 0 && v <= 64) && names.every((n) => /width|bits|weight|data_in|bias/.test(n));
  const colour = new Map(values.map((value, i) => [value, areWidths ? bitsColour(value) : series(i)]));
  const first = Object.keys(study.objectives)[0];
  const head = shown.map((t) => h("th", { scope: "col", title: `${first} ${named(first, t.values[first])}` },
    t.number === study.applied ? h("span", { class: "badge" }, `#${t.number} applied`) : `#${t.number}`));
  const keys = areWidths ? h("ul", { class: "keys", "aria-label": "Bits" }, values.map((v) =>
    h("li", {}, h("span", { class: "swatch", style: { "--c": colour.get(v) } }), bitsText(v)))) : null;
  const cell = (t, name) => (t.params?.[name] === undefined ? h("td", {}) : h("td", {}, h("span", { style: { "--c": colour.get(t.params[name]) } }, text(t.params[name]))));
  const rows = names.map((name) => h("tr", {}, h("th", { scope: "row" }, name), shown.map((t) => cell(t, name))));
  return h("div", { class: "panel pad" },
    h("h3", {}, `Precision along the front, ${first} first`), keys,
    h("div", { class: "map", tabindex: "0", role: "region", "aria-label": "Precision map" },
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, ""), head)), h("tbody", {}, rows))));
}

/** Whether the model of one trial was kept. */
const hasApplied = (study) => study.applied !== null && study.applied !== undefined;

/** Where a trial stands: applied, on the front, or neither. */
const placeOf = (trial, study, isBest) =>
  [trial.number === study.applied && "applied", isBest.has(trial.number) && "front"].filter(Boolean).join(" ");
const badges = (place) => h("span", {}, place.split(" ").filter(Boolean).map((word) => h("span", { class: word === "applied" ? "badge strong" : "badge" }, word)));

/** The trial that was applied, then the front, then the rest as they came. */
function ranked(study) {
  const isBest = new Set(study.front);
  const rank = (t) => (t.number === study.applied ? 0 : isBest.has(t.number) ? 1 : 2);
  return [...study.trials].sort((a, b) => rank(a) - rank(b) || a.number - b.number);
}

function trialTable(study, onpick) {
  const names = Object.keys(study.objectives);
  const isBest = new Set(study.front);
  return new Table({
    label: `trials of ${study.name}`, rows: ranked(study), nameOf: (t) => t.number, onpick,
    columns: [
      { title: "Trial", kind: "num", value: (t) => t.number },
      ...(isBest.size || hasApplied(study) ? [{ title: "Place", value: (t) => placeOf(t, study, isBest), cell: (t) => badges(placeOf(t, study, isBest)) }] : []),
      ...names.map((name) => valueColumn(study, name)),
      { title: "Time", kind: "num", value: (t) => t.seconds, cell: (t) => seconds(t.seconds) },
      ...(study.trials.some((t) => t.state !== "complete") ? [{ title: "State", value: (t) => t.state }] : []),
      { title: "Parameters", kind: "mono", value: (t) => brief(t.params) },
      ...(study.trials.some((t) => t.reason) ? [{ title: "Reason", value: (t) => t.reason ?? "" }] : []),
    ],
  });
}

/** A column of one objective, its decimals aligned. */
function valueColumn({ trials }, name) {
  const value = (t) => t.values?.[name];
  const given = trials.map(value).filter((v) => typeof v === "number");
  const isAligned = given.some((v) => !Number.isInteger(v)) && given.every((v) => Math.abs(v) < 1e4) && !isShare(name, given);
  const show = (v) => (isAligned && typeof v === "number" ? v.toFixed(4) : named(name, v));
  return { title: name, kind: "num", value, cell: (t) => show(value(t)) };
}

function brief(params) {
  const said = Object.entries(params ?? {}).map(([name, value]) => `${name}=${text(value)}`).join(", ");
  return said.length > 90 ? `${said.slice(0, 89)}…` : said;
}

function oneStudy(study) {
  const picked = h("div", { class: "panel pad side", tabindex: "0", role: "region", "aria-label": "Trial" }, h("p", { class: "note" }, "Click a trial to see all of it."));
  const choose = (trial) => {
    const applied = trial.number === study.applied ? h("p", { class: "note" }, "Applied: the model of this trial was kept.") : null;
    picked.replaceChildren(...[...trialDetails(trial).slice(0, 1), applied, ...trialDetails(trial).slice(1)].filter(Boolean));
    table.mark(trial.number);
    pareto?.mark(trial.number);
  };
  const table = trialTable(study, choose);
  const pareto = Object.keys(study.objectives).length > 1 ? new ParetoChart(study, choose) : null;
  const bars = Object.entries(study.importance ?? {}).map(([objective, shares]) => shareBars(`Importance for ${objective}`, shares));
  const applied = hasApplied(study) && `trial ${study.applied} applied`;
  const about = [study.sampler && `sampler ${study.sampler}`, study.seed !== null && study.seed !== undefined && `seed ${study.seed}`, `${study.trials.length} trials`, applied];
  const first = study.trials.find((t) => t.number === (hasApplied(study) ? study.applied : study.front[0]));
  if (first) choose(first);
  return h("div", { class: "stack study" },
    h("header", {}, h("h3", {}, study.name), h("p", { class: "note" }, about.filter(Boolean).join(", "))),
    h("div", { class: "columns" }, pareto?.element, picked),
    h("div", { class: "columns level" }, bars, precisionMap(study)),
    table.element);
}

/** The section about searches. */
export function studiesSection(studies) {
  const objectives = [...new Set(studies.flatMap((study) => Object.keys(study.objectives)))];
  const having = (name) => studies.filter((study) => study.objectives[name] && study.best[name].length);
  const rises = (name) => having(name).filter((study) => study.best[name].length > 1); // one that never improves says nothing
  const curves = objectives.filter((name) => rises(name).length).map((name) => bestChart(name, rises(name)));
  return section("search", "Search", null, h("div", { class: "stack" }, studies.map(oneStudy), curves.length ? h("div", { class: "columns" }, curves) : null));
}
