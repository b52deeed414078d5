// The numbers that matter, at the top.

import { h } from "./dom.js";
import { UNIT, digits, text } from "./format.js";

function changeText(before, value, unit) {
  if (typeof before !== "number" || typeof value !== "number") return `was ${text(before)}`;
  const was = `was ${UNIT[unit](before)}`;
  if (unit === "share") return `${was}, ${value >= before ? "+" : "−"}${digits(Math.abs(value - before) * 100, 3)} points`;
  if (!before || !value || before === value) return was;
  const ratio = Math.max(before / value, value / before);
  return `${was}, ${digits(ratio, 3)}× ${value < before ? "less" : "more"}`;
}

function card({ name, value, before, unit }) {
  const isNumber = typeof value === "number";
  const shown = isNumber ? UNIT[unit](value) : text(value);
  return h("div", { class: "card panel", role: "listitem" },
    h("div", { class: "name" }, name.replaceAll("_", " ")),
    h("div", { class: isNumber ? "value" : "value text", title: isNumber ? String(value) : undefined }, shown),
    before === null || before === undefined ? null : h("div", { class: "change" }, changeText(before, value, unit)));
}

export const cardsRow = (cards) => h("div", { class: "cards", role: "list", "aria-label": "Key figures" }, cards.map(card));
