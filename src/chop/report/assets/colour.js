// What the colours of a graph mean: type, precision, sparsity or cost.

import { compact, share } from "./format.js";

const TYPES = {
  module: "var(--c0)",
  module_related_func: "var(--c1)",
  builtin_func: "var(--c2)",
  implicit_func: "var(--c7)",
  placeholder: "var(--c3)",
  get_attr: "var(--c6)",
  output: "var(--c4)",
};
const SERIES = 8;
const NONE = "var(--none)";

/** The colour of the n-th of several things. */
export const series = (n) => `var(--c${n % SERIES})`;

/** A colour of the sequential scale, 0 to 1. */
export const ramp = (part) =>
  `color-mix(in oklab, var(--scale-high) ${(100 * Math.min(1, Math.max(0, part))).toFixed(1)}%, var(--scale-low))`;

function counted(nodes, keyOf) {
  const counts = new Map();
  for (const node of nodes) {
    const key = keyOf(node);
    if (key) counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1]);
}

function categories(nodes, keyOf, colours) {
  const counts = counted(nodes, keyOf);
  const colour = new Map(counts.map(([key], i) => [key, colours?.[key] ?? (i < SERIES - 1 ? series(i) : NONE)]));
  return {
    colourOf: (node) => colour.get(keyOf(node)) ?? NONE,
    keys: counts.map(([label, count]) => ({ label, count, colour: colour.get(label) })),
  };
}

function bySparsity(nodes) {
  const most = Math.max(0, ...nodes.map((n) => n.sparsity ?? 0));
  return {
    colourOf: (node) => (node.sparsity === undefined ? NONE : ramp(most ? node.sparsity / most : 0)),
    ends: [share(0), `${share(most)} zeros`],
  };
}

function byCost(nodes) {
  const costs = nodes.map((n) => n.flops ?? 0).filter((c) => c > 0);
  const [low, high] = [Math.min(...costs), Math.max(...costs)];
  const span = Math.log(high / low) || 1;
  return {
    colourOf: (node) => (node.flops ? ramp(Math.log(node.flops / low) / span) : NONE),
    ends: costs.length ? [compact(low), `${compact(high)} FLOPs`] : ["no cost", ""],
  };
}

/** By name: how nodes are coloured. Each gives `colourOf` and either `keys` or `ends`. */
export const COLOURINGS = {
  type: ["Type", (nodes) => categories(nodes, (n) => n.type, TYPES)],
  precision: ["Precision", (nodes) => categories(nodes, (n) => n.format)],
  sparsity: ["Sparsity", bySparsity],
  cost: ["Cost", byCost],
};
