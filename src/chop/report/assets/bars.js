// Bars: histograms of weights, and shares by name.

import { h, s } from "./dom.js";
import { digits, number, share } from "./format.js";
import { hideTip, showTip } from "./tooltip.js";

const WIDE = 330;
const HIGH = 110;
const SPIKE = 4; // a bar so many times the next (the zeros of a pruned weight) is cut short

/** A histogram as records have it: `low`, `width` and `counts`. */
export function histogramOf({ low, width, counts, sampled }) {
  const [largest, second = 0] = [...counts].sort((a, b) => b - a);
  const isCut = second > 0 && largest > SPIKE * second;
  const most = isCut ? 1.25 * second : largest;
  const step = WIDE / counts.length;
  const bars = counts.map((count, i) => {
    const height = count ? Math.max(1, Math.min(1, count / most) * HIGH) : 0;
    const from = low + i * width;
    const tell = (event) => showTip(event.clientX, event.clientY, number(count), [["from", digits(from)], ["to", digits(from + width)]]);
    return s("g", { onpointermove: tell, onpointerleave: hideTip },
      s("rect", { x: i * step, y: 0, width: step, height: HIGH, fill: "transparent" }),
      s("rect", { class: "bar-fill", x: i * step + 0.5, y: HIGH - height, width: Math.max(1, step - 1), height }));
  });
  const end = low + width * counts.length;
  const zero = low < 0 && end > 0 ? (-low / (end - low)) * WIDE : null;
  const label = (x, anchor, text) => s("text", { x, y: HIGH + 15, "text-anchor": anchor }, text);
  const picture = s("svg", { viewBox: `0 0 ${WIDE} ${HIGH + 18}`, role: "img", "aria-label": `Histogram of the weight, ${digits(low)} to ${digits(end)}` },
    bars,
    s("line", { class: "grid", x1: 0, x2: WIDE, y1: HIGH, y2: HIGH }),
    label(0, "start", digits(low, 3)), label(WIDE, "end", digits(end, 3)),
    zero !== null && zero > 60 && zero < WIDE - 60 ? label(zero, "middle", "0") : null);
  return h("div", { class: "chart", style: { padding: 0, "--c": "var(--c0)" } }, picture,
    sampled ? h("p", { class: "note" }, `${number(sampled)} values, evenly spaced`) : null,
    isCut ? h("p", { class: "note" }, `The highest bar is cut short: ${number(largest)}`) : null);
}

/** Shares by name, the largest first. */
export function shareBars(title, shares, most = 20) {
  const pairs = Object.entries(shares).slice(0, most);
  const largest = Math.max(...pairs.map(([, value]) => value), 1e-9);
  const rows = pairs.map(([name, value]) => h("tr", {},
    h("td", { class: "mono" }, name),
    h("td", { style: { width: "50%" } }, h("div", {
      style: { height: "12px", "border-radius": "3px", background: "var(--c0)", width: `${(100 * value) / largest}%` },
    })),
    h("td", { class: "num" }, share(value))));
  const rest = Object.keys(shares).length - pairs.length;
  return h("figure", { class: "chart panel", style: { margin: 0 } }, h("h3", {}, title),
    h("table", { "aria-label": title }, h("tbody", {}, rows)),
    rest > 0 ? h("p", { class: "note" }, `and ${rest} more`) : null);
}
