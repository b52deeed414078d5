// Figures of sweeps: accuracy over sparsity, width, rank …

import { Chart } from "./chart.js";
import { series } from "./colour.js";
import { h, section } from "./dom.js";

function figure({ title, x, y, is_log: isLog, curves, levels }) {
  const drawn = curves.map((curve, i) => ({
    label: curve.label, colour: series(i), isNamed: true,
    points: curve.points.map(([at, mean, low, high]) => ({ x: at, y: mean, low, high })),
  }));
  return new Chart({ title, x, y, isLog, series: drawn, levels: levels ?? {} }).element;
}

export const sweepsSection = (figures) =>
  section("sweeps", "Sweeps", "Mean over the seeds; the band spans the lowest and the highest; the dashed line is the model before it was compressed.",
    h("div", { class: "columns" }, figures.map(figure)));
