// Numbers as people read them.

const STEPS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const NARROW = " ";

/** At most `digits` significant digits, no trailing zeros. */
export function digits(value, count = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e9) return value.toExponential(2).replace("e+", "e");
  return Number(value.toPrecision(count)).toLocaleString("en-GB", { maximumFractionDigits: 8 });
}

/** A whole number with separators; another to four digits. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  return Number.isInteger(value) ? value.toLocaleString("en-GB") : digits(value);
}

/** A large count in thousands, millions … with its unit behind. */
export function compact(value, unit = "") {
  if (value === null || value === undefined) return "–";
  const [size, prefix] = STEPS.find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  const text = digits(value / size, size === 1 ? 4 : 3);
  return prefix || unit ? `${text}${NARROW}${prefix}${unit}` : text;
}

/** A count: with separators up to a million, in words of size from there. */
export const count = (value) => (Number.isInteger(value) && Math.abs(value) >= 1e6 ? compact(value) : number(value));

export const bytes = (value) => compact(value, "B");

/** A share as per cent, with as many decimals as it needs near the ends. */
export function share(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return `0${NARROW}%`;
  return `${(100 * value).toFixed(value !== 0 && Math.abs(value) < 0.1 ? 2 : 1)}${NARROW}%`;
}

export const seconds = (value) =>
  value === null || value === undefined ? "–" : value >= 1 ? `${digits(value, 3)}${NARROW}s` : `${digits(1000 * value, 3)}${NARROW}ms`;

export const shape = (sizes) => (sizes && sizes.length ? sizes.join("×") : "scalar");

/** A width: `8 bits`, `4.25 bits`. */
export const bitsText = (bits) => `${digits(bits, 4)}${NARROW}${bits === 1 ? "bit" : "bits"}`;

/** Counts of four digits and more in a sentence, with separators. */
export const separated = (words) => words.replace(/\d{4,}/g, (found) => number(Number(found)));

const KIND_WORDS = {
  placeholder: "input",
  module_related_func: "layer",
  module: "layer with state",
  builtin_func: "arithmetic",
  implicit_func: "shape and indexing",
  get_attr: "parameter",
  output: "output",
};

/** What people call a type of the IR. */
export const kindWord = (type) => KIND_WORDS[type] ?? type;

const SHARES = /(accuracy|sparsity|utilisation|agreement|share|f1)$/;

/** Whether a quantity of this name is a share of one, as all these values are. */
export const isShare = (name, values) => SHARES.test(name) && values.every((v) => typeof v !== "number" || (v >= 0 && v <= 1));

/** A value of the named quantity: shares as per cent with two decimals, so that they align. */
export function named(name, value) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  return isShare(name, [value]) ? `${(100 * value).toFixed(2)}${NARROW}%` : number(value);
}

/** How to write a value of a unit, as `UNITS` in records.py names them. */
export const UNIT = {
  bytes,
  share,
  seconds,
  number: (value) => count(value),
};

/** Any value of a parameter or a setting. */
export function text(value) {
  if (typeof value === "number") return number(value);
  if (value !== null && typeof value === "object") return JSON.stringify(value);
  return String(value);
}
