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

/** How to write a value of a unit, as `UNITS` in records.py names them. */
export const UNIT = {
  bytes,
  share,
  seconds,
  number: (value) => (Number.isInteger(value) && Math.abs(value) >= 1e6 ? compact(value) : number(value)),
};

/** Any value of a parameter or a setting. */
export function text(value) {
  if (typeof value === "number") return number(value);
  if (value !== null && typeof value === "object") return JSON.stringify(value);
  return String(value);
}
