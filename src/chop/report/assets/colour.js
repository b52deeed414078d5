// What the colours of a graph mean: precision, sparsity, cost or kind.

import { h } from "./dom.js";
import { bitsText, compact, kindWord, share } from "./format.js";

const KINDS = {
  input: "var(--c3)",
  layer: "var(--c1)",
  "layer with state": "var(--c0)",
  arithmetic: "var(--c2)",
  "shape and indexing": "var(--c7)",
  parameter: "var(--c6)",
  output: "var(--c4)",
};
const SERIES = 8;
const NONE = "var(--none)";
const WIDTHS = [2, 4, 8, 16, 32]; // each has a colour; those between are mixed

/** The colour of the n-th of several things. */
export const series = (n) => `var(--c${n % SERIES})`;

const mixed = (part, high, low) => `color-mix(in oklab, var(${high}) ${(100 * Math.min(1, Math.max(0, part))).toFixed(1)}%, var(${low}))`;

/** A colour of the sequential scale, 0 to 1. */
export const ramp = (part) => mixed(part, "--scale-high", "--scale-low");

/** The colour of a width, in order: red at 2 bits, violet, blue at 8, green, grey at 32. */
export function bitsColour(bits) {
  if (!(bits > 0)) return NONE;
  const place = Math.min(WIDTHS.length - 1, Math.max(0, Math.log2(bits) - 1));
  const below = Math.min(WIDTHS.length - 2, Math.floor(place));
  return mixed(place - below, `--bits-${WIDTHS[below + 1]}`, `--bits-${WIDTHS[below]}`);
}

/** The scale of widths, for a legend. */
export const bitsScale = () => h("div", { class: "bits-ramp", "aria-hidden": "true" },
  WIDTHS.map((bits, i) => h("span", {}, i ? String(bits) : `${bits} bits`)));

function counted(nodes, keyOf) {
  const counts = new Map();
  for (const node of nodes) {
    const key = keyOf(node);
    if (key) counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  return [...counts].sort((a, b) => b[1] - a[1]);
}

function byKind(nodes) {
  const keyOf = (node) => kindWord(node.type);
  return {
    colourOf: (node) => KINDS[keyOf(node)] ?? NONE,
    keys: counted(nodes, keyOf).map(([label, count]) => ({ label, count, colour: KINDS[label] ?? NONE })),
  };
}

/** The family of a format, without its sizes: `fixed` of `fixed(8, 4)`. */
const family = (format) => /^[a-z]+/i.exec(format ?? "")?.[0] ?? "";

/** Fewest bits first; formats of one family and width are one colour. */
function byPrecision(nodes) {
  const told = new Map();
  for (const { format, format_bits: bits } of nodes) {
    if (!format) continue;
    const label = bits ? `${bitsText(bits)} ${family(format)}` : format;
    const key = told.get(label) ?? { label, bits: bits ?? Infinity, count: 0, colour: bitsColour(bits) };
    key.count += 1;
    told.set(label, key);
  }
  return {
    colourOf: (node) => bitsColour(node.format_bits),
    keys: [...told.values()].sort((a, b) => a.bits - b.bits),
    hasBits: true,
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

/** By name: how nodes are coloured, the first one first. Each gives `colourOf` and either `keys` or `ends`. */
export const COLOURINGS = {
  precision: ["Precision", byPrecision],
  sparsity: ["Sparsity", bySparsity],
  cost: ["Cost", byCost],
  kind: ["Kind", byKind],
};
