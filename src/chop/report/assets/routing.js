// Place and route: the clock each seed reached, what of the device is used, and the critical path.

import { Chart } from "./chart.js";
import { series } from "./colour.js";
import { h, section } from "./dom.js";
import { digits, number, separated, share } from "./format.js";
import { Table } from "./table.js";

/** Cells used of those there are, as bars. */
function utilisation(used) {
  const rows = Object.entries(used).map(([name, cell]) => h("tr", {}, h("td", { class: "mono" }, name),
    h("td", { style: { width: "45%" } }, h("div", { class: "meter" }, h("div", { style: { width: `${100 * Math.min(1, cell.share ?? 0)}%` } }))),
    h("td", { class: "num" }, cell.of ? `${number(cell.used)} of ${number(cell.of)}` : number(cell.used)),
    h("td", { class: "num" }, cell.share === undefined || cell.share === null ? "" : share(cell.share))));
  return h("figure", { class: "chart panel", style: { margin: 0 } }, h("h3", {}, "Used of the device"), h("table", { "aria-label": "Used of the device" }, h("tbody", {}, rows)));
}

function clocks(seeds) {
  const points = seeds.map(({ seed, fmax_mhz: clock }) => ({ x: seed, y: clock }));
  return new Chart({
    title: "Clock by seed", x: "seed of the placement", y: "Fmax (MHz)",
    series: [{ label: "Fmax", colour: series(0), points, shape: "points", size: 5 }],
  }).element;
}

function criticalPath(path) {
  const table = new Table({
    label: "critical path", rows: path, nameOf: (row) => row.where,
    columns: [
      { title: "Stage", kind: "mono", value: (r) => r.stage }, { title: "Kind", value: (r) => r.kind },
      { title: "Delay", kind: "num", value: (r) => r.nanoseconds, cell: (r) => `${r.nanoseconds.toFixed(2)}\u202fns` },
      { title: "Net or cell", kind: "mono", value: (r) => r.where },
    ],
  });
  const whole = path.reduce((sum, step) => sum + step.nanoseconds, 0);
  return h("div", { class: "stack" }, h("h3", {}, `Critical path: ${digits(whole, 3)} ns in ${path.length} steps`), table.element);
}

/** The section about a routed design. */
export function routingSection({ device, fmax_mhz: best, seeds, utilisation: used, critical_path: path, simulated }) {
  const about = [device, `${digits(best, 4)} MHz`, simulated && separated(simulated)].filter(Boolean).join(", ");
  return section("routing", "Place and route", about, h("div", { class: "stack" },
    h("div", { class: "columns level" }, clocks(seeds), used && Object.keys(used).length ? utilisation(used) : null),
    path.length ? criticalPath(path) : null));
}
