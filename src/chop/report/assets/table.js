// Tables that sort, filter and select.

import { h } from "./dom.js";

const FIRST = 250; // rows drawn before "show all" is asked for
const isGiven = (value) => value !== undefined && value !== null && value !== "";
const COLLATOR = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

function compare(a, b) {
  const [missingA, missingB] = [a === undefined || a === null, b === undefined || b === null];
  if (missingA || missingB) return missingA - missingB;
  return typeof a === "number" && typeof b === "number" ? a - b : COLLATOR.compare(a, b);
}

/** What can be wider than the page: it scrolls, and a shade marks each edge that more lies beyond. */
export function scroller(label, table) {
  const inner = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
  const outer = h("div", { class: "edges" }, inner);
  const look = () => {
    const rest = inner.scrollWidth - inner.clientWidth - inner.scrollLeft;
    outer.classList.toggle("more-left", inner.scrollLeft > 1);
    outer.classList.toggle("more-right", rest > 1);
  };
  inner.addEventListener("scroll", look, { passive: true });
  const watcher = new ResizeObserver(look);
  watcher.observe(inner);
  watcher.observe(table);
  return outer;
}

/**
 * A table. A column has `title`, `value` (what it sorts by) and `cell` (what it shows; the value
 * where left out), and `kind` "num" or "mono". A column that no row has a value for is left out.
 * Rows for which `isEmpty` holds are folded into one line of `emptyWords` until it is clicked.
 */
export class Table {
  constructor({ label, columns, rows, nameOf, onpick, extra = [], isEmpty = () => false, emptyWords = "" }) {
    columns = columns.filter((c) => rows.some((row) => isGiven(c.value(row))));
    Object.assign(this, { columns, rows, nameOf, onpick, isEmpty, emptyWords, isUnfolded: !rows.some(isEmpty) || rows.every(isEmpty), order: null, isAscending: true, isWhole: false, keep: () => true });
    this.head = h("tr", {}, columns.map((column, i) =>
      h("th", { class: column.kind, scope: "col" }, h("button", { type: "button", onclick: () => this.sortBy(i) }, column.title))));
    this.body = h("tbody", {});
    this.count = h("span", { class: "note spread", role: "status" });
    this.filter = h("input", { class: "field", type: "search", placeholder: "Filter rows", "aria-label": `Filter ${label}`, oninput: () => this.draw() });
    const table = h("table", { "aria-label": label }, h("thead", {}, this.head), this.body);
    this.element = h("div", { class: "panel" }, h("div", { class: "tools" }, this.filter, extra, this.count), scroller(label, table));
    this.draw();
  }

  sortBy(index) {
    this.isAscending = this.order === index ? !this.isAscending : this.columns[index].kind !== "num";
    this.order = index;
    [...this.head.children].forEach((th, i) => {
      if (i === index) th.setAttribute("aria-sort", this.isAscending ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
    });
    this.draw();
  }

  /** The rows that pass the filter, in order. */
  shown() {
    const wanted = this.filter.value.trim().toLowerCase();
    const found = this.rows.filter((row) => this.keep(row) && (!wanted || this.text(row).includes(wanted)));
    if (this.order === null) return found;
    const { value } = this.columns[this.order];
    const has = (row) => value(row) !== undefined && value(row) !== null;
    const sign = this.isAscending ? 1 : -1;
    // rows without a value stay last either way
    return found.sort((a, b) => (has(a) && has(b) ? sign : 1) * compare(value(a), value(b)));
  }

  text(row) {
    return this.columns.map((c) => c.value(row)).join(" ").toLowerCase();
  }

  draw() {
    const found = this.shown();
    const isFolding = !this.isUnfolded && !this.filter.value.trim();
    const rows = isFolding ? found.filter((row) => !this.isEmpty(row)) : found;
    const drawn = this.isWhole ? rows : rows.slice(0, FIRST);
    this.body.replaceChildren(...drawn.map((row) => this.row(row)));
    if (drawn.length < rows.length) this.body.append(this.more(rows.length));
    if (rows.length < found.length) this.body.append(this.folded(found.length - rows.length));
    this.count.textContent = found.length === this.rows.length ? `${found.length} rows` : `${found.length} of ${this.rows.length} rows`;
    this.mark(this.marked);
  }

  row(row) {
    const cells = this.columns.map((c) => h("td", { class: c.kind }, c.cell ? c.cell(row) : c.value(row) ?? ""));
    if (!this.onpick) return h("tr", {}, cells);
    const pick = () => this.onpick(row);
    return h("tr", {
      class: "pick", tabindex: "0", "data-name": this.nameOf(row), onclick: pick,
      onkeydown: (event) => { if (event.key === "Enter") pick(); },
    }, cells);
  }

  folded(count) {
    const show = () => { this.isUnfolded = true; this.draw(); };
    return h("tr", { class: "folded" }, h("td", { colspan: this.columns.length }, h("button", { class: "link", type: "button", onclick: show }, `and ${count} ${this.emptyWords}`)));
  }

  more(count) {
    const show = () => { this.isWhole = true; this.draw(); };
    return h("tr", {}, h("td", { colspan: this.columns.length }, h("button", { class: "link", type: "button", onclick: show }, `Show all ${count} rows`)));
  }

  /** Mark the row of this name as the selected one. */
  mark(name) {
    this.marked = name;
    for (const tr of this.body.children) {
      if (tr.dataset?.name !== undefined) tr.setAttribute("aria-selected", String(tr.dataset.name === String(name)));
    }
  }
}
