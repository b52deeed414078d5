// Searches: curves of the best so far, Pareto fronts, importances, the precision map and trials.

import { shareBars } from "./bars.js";
import { Chart } from "./chart.js";
import { series } from "./colour.js";
import { h, section } from "./dom.js";
import { number, seconds, text } from "./format.js";
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
  const colour = new Map(values.map((value, i) => [value, series(i)]));
  const first = Object.keys(study.objectives)[0];
  const head = shown.map((t) => h("th", { scope: "col", title: `${first} ${number(t.values[first])}` }, `#${t.number}`));
  const cell = (t, name) => (t.params?.[name] === undefined ? h("td", {}) : h("td", {}, h("span", { style: { "--c": colour.get(t.params[name]) } }, text(t.params[name]))));
  const rows = names.map((name) => h("tr", {}, h("th", { scope: "row" }, name), shown.map((t) => cell(t, name))));
  return h("div", { class: "panel pad" },
    h("h3", {}, `Precision map of the front, ${first} first`),
    h("div", { class: "map", tabindex: "0", role: "region", "aria-label": "Precision map" },
      h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, ""), head)), h("tbody", {}, rows))));
}

/** Whether the model of one trial was kept. */
const hasApplied = (study) => study.applied !== null && study.applied !== undefined;

function trialTable(study, onpick) {
  const names = Object.keys(study.objectives);
  const isBest = new Set(study.front);
  return new Table({
    label: `trials of ${study.name}`, rows: study.trials, nameOf: (t) => t.number, onpick,
    columns: [
      { title: "Trial", kind: "num", value: (t) => t.number },
      { title: "State", value: (t) => t.state },
      ...names.map((name) => valueColumn(study, name)),
      { title: "Front", value: (t) => (isBest.has(t.number) ? "yes" : "") },
      ...(hasApplied(study) ? [{ title: "Applied", value: (t) => (t.number === study.applied ? "yes" : "") }] : []),
      { title: "Time", kind: "num", value: (t) => t.seconds, cell: (t) => seconds(t.seconds) },
      { title: "Parameters", kind: "mono", value: (t) => brief(t.params) },
      ...(study.trials.some((t) => t.reason) ? [{ title: "Reason", value: (t) => t.reason ?? "" }] : []),
    ],
  });
}

/** A column of one objective, its decimals aligned. */
function valueColumn({ trials }, name) {
  const value = (t) => t.values?.[name];
  const given = trials.map(value).filter((v) => typeof v === "number");
  const isAligned = given.some((v) => !Number.isInteger(v)) && given.every((v) => Math.abs(v) < 1e4);
  const show = (v) => (isAligned && typeof v === "number" ? v.toFixed(4) : number(v));
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
  const curves = objectives.filter((name) => having(name).length).map((name) => bestChart(name, having(name)));
  return section("search", "Search", null, h("div", { class: "stack" }, h("div", { class: "columns" }, curves), studies.map(oneStudy)));
}
