// Theme, menu, copying of code, and a search that reads an index from disk: no server is asked.

const base = document.body.dataset.base;
const THEMES = ["system", "light", "dark"];
const WORDS = { system: ["◐", " System"], light: ["☀", " Light"], dark: ["☾", " Dark"] };
const MOST = 12;

const store = (value) => { try { localStorage.setItem("mase-theme", value); } catch { /* a file may have no storage */ } };
const recall = () => { try { return localStorage.getItem("mase-theme"); } catch { return null; } };

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function startTheme(button) {
  const set = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const [sign, word] = WORDS[theme];
    button.replaceChildren(sign, make("span", { class: "word" }, word));
    button.setAttribute("aria-label", `Colours: ${theme}. Change`);
    button.dataset.theme = theme;
  };
  set(THEMES.includes(recall()) ? recall() : "system");
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(button.dataset.theme) + 1) % THEMES.length];
    set(next);
    store(next);
  });
}

function startMenu(button, menu) {
  button.addEventListener("click", () => button.setAttribute("aria-expanded", String(menu.classList.toggle("open"))));
}

function startCopying() {
  for (const block of document.querySelectorAll("main pre")) {
    const button = make("button", { class: "copy", type: "button" }, "copy");
    button.addEventListener("click", async () => {
      const text = block.querySelector("code")?.innerText ?? block.innerText;
      try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "not allowed"; }
    });
    (block.closest(".highlight") ?? block).append(button);
  }
}

// -- search: index.js, a script, sets window.searchIndex; a page from disk may load scripts but fetch nothing

let loading = null;
const loadIndex = () => (loading ??= new Promise((done, fail) => {
  const script = make("script", { src: `${base}/search/index.js` });
  script.onload = () => done(window.searchIndex);
  script.onerror = fail;
  document.head.append(script);
}));

/** Places that have all words, those with them in the title first. */
function find(places, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const scored = places.map((place) => [score(place, words), place]).filter(([points]) => points > 0);
  return scored.sort((a, b) => b[0] - a[0]).slice(0, MOST).map(([, place]) => place);
}

function score({ title, page, text }, words) {
  const [head, body] = [`${page} ${title}`.toLowerCase(), text.toLowerCase()];
  let points = 0;
  for (const word of words) {
    const here = (head.includes(word) ? 10 : 0) + (title.toLowerCase() === word ? 20 : 0) + Math.min(4, body.split(word).length - 1);
    if (!here) return 0;
    points += here;
  }
  return points;
}

function excerpt(text, words) {
  const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - 50);
  const part = `${at ? "…" : ""}${text.slice(at, at + 160)}`;
  const pattern = new RegExp(`(${words.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "gi");
  return part.split(pattern).map((piece, i) => (i % 2 ? make("mark", {}, piece) : piece));
}

function startSearch(field, list) {
  let places = null;
  const close = () => { list.hidden = true; };
  const show = () => {
    const query = field.value.trim();
    if (!places || !query) return close();
    const words = query.toLowerCase().split(/\s+/);
    const found = find(places, query).map((place) => make("li", {},
      make("a", { href: `${base}/${place.url}` }, make("strong", {}, place.title), make("small", {}, place.page === place.title ? "" : `${place.page} · `, ...excerpt(place.text, words)))));
    list.replaceChildren(...(found.length ? found : [make("li", {}, "Nothing found.")]));
    list.hidden = false;
    return undefined;
  };
  field.addEventListener("focus", async () => { places ??= await loadIndex(); show(); });
  field.addEventListener("input", async () => { places ??= await loadIndex(); show(); });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") list.querySelector("a")?.click();
    if (event.key === "Escape") { close(); field.blur(); }
    if (event.key === "ArrowDown") list.querySelector("a")?.focus();
  });
  list.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) { event.preventDefault(); (links[links.indexOf(document.activeElement) + step] ?? field).focus(); }
    if (event.key === "Escape") { close(); field.focus(); }
  });
  list.addEventListener("click", close);
  addEventListener("click", (event) => { if (!event.target.closest(".search")) close(); });
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) { event.preventDefault(); field.focus(); }
  });
}

startTheme(document.getElementById("theme"));
startMenu(document.getElementById("menu"), document.getElementById("sections"));
startCopying();
startSearch(document.getElementById("query"), document.getElementById("found"));
