// Two objectives of a study against each other, the front drawn through, and the chosen trial.

import { Chart } from "./chart.js";
import { series } from "./colour.js";
import { dropdown, factList, h } from "./dom.js";
import { named, seconds, text } from "./format.js";

const MOST = 12; // parameters in a tooltip

const valueFacts = (trial) => Object.entries(trial.values ?? {}).map(([name, value]) => [name, named(name, value)]);

function tipFacts(trial) {
  const parameters = Object.entries(trial.params ?? {});
  const told = parameters.slice(0, MOST).map(([name, value]) => [name, text(value)]);
  const rest = parameters.length - told.length;
  return [...valueFacts(trial), ...told, ...(rest > 0 ? [["…", `${rest} more`]] : [])];
}

/** A point of a chart for a trial. */
export const trialPoint = (trial, x, y, isFaint) => ({
  x, y, isFaint, key: trial.number, trial, title: `Trial ${trial.number}`, facts: tipFacts(trial),
});

/** All of one trial, for the panel beside the charts. */
export function trialDetails(trial) {
  const parameters = Object.entries(trial.params ?? {}).map(([name, value]) => [name, h("code", {}, text(value))]);
  const attributes = Object.entries(trial.attributes ?? {}).map(([name, value]) => [name, h("code", {}, text(value))]);
  return [
    h("h3", {}, `Trial ${trial.number}`),
    factList([["state", trial.state], ...valueFacts(trial), ["time", trial.seconds === null ? undefined : seconds(trial.seconds)], ["reason", trial.reason]]),
    parameters.length ? h("h3", { style: { "margin-top": "12px" } }, "Parameters") : null,
    factList(parameters),
    attributes.length ? h("h3", { style: { "margin-top": "12px" } }, "Attributes") : null,
    factList(attributes),
  ];
}

/** The chart of two objectives; with more than two, which ones can be chosen. */
export class ParetoChart {
  constructor(study, onpick) {
    this.study = study;
    this.names = Object.keys(study.objectives);
    this.onpick = onpick;
    [this.y, this.x] = this.names;
    this.holder = h("div", {});
    this.element = h("div", {}, this.names.length > 2 ? this.chooser() : null, this.holder);
    this.draw();
  }

  chooser() {
    const options = this.names.map((name) => [name, name]);
    const pick = (axis) => (name) => { this[axis] = name; this.draw(); };
    return h("div", { class: "tools" }, dropdown("Across", options, this.x, pick("x")), dropdown("Up", options, this.y, pick("y")));
  }

  draw() {
    const { trials, front } = this.study;
    const isBest = new Set(front);
    const done = trials.filter((t) => t.state === "complete" && typeof t.values?.[this.x] === "number" && typeof t.values?.[this.y] === "number");
    const point = (t) => trialPoint(t, t.values[this.x], t.values[this.y], !isBest.has(t.number));
    const best = done.filter((t) => isBest.has(t.number)).map(point).sort((a, b) => a.x - b.x);
    const corners = this.study.objectives[this.x] === "minimize" ? "steps" : "risers";
    const shape = this.names.length > 2 ? "points" : corners; // a front of three objectives is no line in two
    const applied = done.filter((t) => t.number === this.study.applied).map(point);
    this.chart = new Chart({
      title: `Pareto front: ${best.length} of ${done.length} trials`, x: this.x, y: this.y,
      series: [
        { label: "other trials", colour: "var(--c7)", points: done.filter((t) => !isBest.has(t.number)).map(point), shape: "points" },
        { label: "Pareto front", colour: series(0), points: best, shape, size: 5, isNamed: true },
        ...(applied.length ? [{ label: "applied", colour: series(1), points: applied, shape: "points", size: 7, isNamed: true }] : []),
      ],
      onpick: (place) => this.onpick(place.trial),
    });
    this.holder.replaceChildren(this.chart.element);
  }

  mark(number) { this.chart.mark(number); }
}
