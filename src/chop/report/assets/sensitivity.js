// What each format in each layer adds to the loss: a map, with the format that was chosen marked.

import { ramp } from "./colour.js";
import { h, section } from "./dom.js";
import { digits, number } from "./format.js";
import { scroller } from "./table.js";
import { hideTip, showTip } from "./tooltip.js";

const LIGHT_TEXT = 0.55; // beyond this part of the scale dark text is hard to read

/** Where a loss lies on the scale, 0 to 1: by its logarithm, for losses span many powers of ten. */
function placer(rows) {
  const losses = rows.map((row) => row.loss).filter((loss) => loss > 0);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const span = Math.log(high / low) || 1;
  return (loss) => (loss > 0 ? Math.log(loss / low) / span : 0);
}

function cellOf(row, isChosen, place) {
  const tell = (event) => showTip(event.clientX, event.clientY, `${row.layer}, ${row.format}`, [
    ["predicted loss", `${digits(row.loss, 3)} nats a row`], ["bits a weight", digits(row.bits)],
    ["weights", number(row.elements)], ["chosen", isChosen ? "yes" : undefined],
  ]);
  const style = { background: ramp(place), color: place > LIGHT_TEXT ? "var(--surface)" : "var(--ink)" };
  return h("td", { class: isChosen ? "num chosen" : "num", style, onpointermove: tell, onpointerleave: hideTip },
    digits(row.loss, 2), isChosen ? h("span", { class: "unseen" }, " (chosen)") : null);
}

/** The section: a row for each layer, a column for each format. */
export function sensitivitySection({ table, assignment = {}, bits, loss }) {
  const formats = [...new Set(table.map((row) => row.format))];
  const width = new Map(table.map((row) => [row.format, row.bits]));
  formats.sort((a, b) => width.get(a) - width.get(b));
  const place = placer(table);
  const layers = [...new Set(table.map((row) => row.layer))];
  const found = new Map(table.map((row) => [JSON.stringify([row.layer, row.format]), row]));
  const rows = layers.map((layer) => h("tr", {}, h("td", { class: "mono" }, layer), formats.map((format) => {
    const row = found.get(JSON.stringify([layer, format]));
    return row ? cellOf(row, assignment[layer] === format, place(row.loss)) : h("td", { class: "num" }, "–");
  })));
  const head = h("tr", {}, h("th", { scope: "col", class: "mono" }, "Layer"), formats.map((format) =>
    h("th", { class: "num", scope: "col" }, format, h("br", {}), h("span", { class: "note" }, `${digits(width.get(format))} bits`))));
  const map = h("table", { class: "losses", "aria-label": "Predicted loss" }, h("thead", {}, head), h("tbody", {}, rows));
  const chosen = bits === undefined ? null : `Chosen: ${digits(bits)} bits a weight on average, predicted loss ${digits(loss, 3)} nats a row. `;
  return section("sensitivity", "Sensitivity",
    `${chosen ?? ""}What each format in each layer alone adds to the divergence from the float model, in nats a row; redder is worse, the outlined format is the chosen one.`,
    h("div", { class: "panel" }, scroller("Predicted loss of each layer in each format", map)));
}
