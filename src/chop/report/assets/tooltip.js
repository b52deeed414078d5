// One tooltip for the whole page.

import { factList, h } from "./dom.js";

const tip = () => document.getElementById("tooltip");

/** Show a title and facts beside a point of the window. */
export function showTip(x, y, title, facts) {
  const box = tip();
  box.replaceChildren(h("strong", {}, title), factList(facts));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = x + 16 + width > innerWidth - 8 ? x - 16 - width : x + 16;
  const top = Math.min(y + 12, innerHeight - height - 8);
  box.style.left = `${Math.max(8, left)}px`;
  box.style.top = `${Math.max(8, top)}px`;
}

export function hideTip() {
  tip().hidden = true;
}
