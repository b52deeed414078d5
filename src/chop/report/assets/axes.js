// Scales and ticks of a chart.

const WANTED = 6;

/** Round numbers that cover an interval. */
export function niceTicks(low, high, wanted = WANTED) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((m) => rough <= m * power * 1.0001) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** A scale from values to pixels; `isLog` for one that doubles. It ends at `limits` where values do. */
export function scale(values, from, to, { isLog = false, pad = 0.05, ticks = WANTED, limits = null } = {}) {
  const forward = isLog ? Math.log2 : (v) => v;
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (low === high) [low, high] = isLog ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1];
  let [a, b] = [forward(low), forward(high)];
  const room = (b - a) * pad;
  [a, b] = [a - room, b + room];
  if (limits) [a, b] = [Math.max(a, limits[0]), Math.min(b, limits[1])];
  const at = (value) => from + ((forward(value) - a) / (b - a)) * (to - from);
  at.ends = [a, b];
  at.ticks = isLog
    ? niceTicks(a, b, ticks).filter(Number.isInteger).map((v) => 2 ** v)
    : niceTicks(a, b, ticks);
  return at;
}
