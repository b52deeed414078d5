// Elements made from data. Text is always set as text: nothing in a report is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** An HTML element: h("p", {class: "note", onclick: f}, "text", child). */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element, made as `h` makes HTML. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A list of terms from pairs; pairs without a value are left out. */
export function factList(pairs) {
  const told = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("dl", { class: "facts" }, told.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

/** A section of the page with its heading. */
export function section(id, title, note, ...children) {
  const head = h("header", {}, h("h2", {}, title), note ? h("p", { class: "note" }, note) : null);
  return h("section", { id, "aria-label": title }, head, children);
}

/** Buttons of which one is pressed; `onpick` gets the value of the one chosen. */
export function choice(label, options, chosen, onpick) {
  const buttons = options.map(([value, text]) =>
    h("button", { type: "button", "aria-pressed": String(value === chosen), "data-value": value, onclick: () => pick(value) }, text));
  const pick = (value) => {
    for (const b of buttons) b.setAttribute("aria-pressed", String(b.dataset.value === String(value)));
    onpick(value);
  };
  const group = h("div", { class: "group", role: "group", "aria-label": label }, buttons);
  group.pick = pick;
  return group;
}

/** A labelled drop-down list. */
export function dropdown(label, options, chosen, onpick) {
  const list = h("select", { class: "select", onchange: () => onpick(list.value) },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  return h("label", { class: "label" }, label, list);
}
