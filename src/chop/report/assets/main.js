// Builds the page from its records.

import { cardsRow } from "./cards.js";
import { comparisonSection } from "./comparison.js";
import { h } from "./dom.js";
import { GraphView } from "./graph.js";
import { hardwareSection } from "./hardware.js";
import { layersSection } from "./layers.js";
import { provenanceSection } from "./provenance.js";
import { routingSection } from "./routing.js";
import { calibrationSection, generationSection, shardingSection } from "./runs.js";
import { Selection } from "./selection.js";
import { sensitivitySection } from "./sensitivity.js";
import { studiesSection } from "./studies.js";
import { sweepsSection } from "./sweeps.js";
import { startTheme } from "./theme.js";

const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("content");
const selection = new Selection();
const graphView = data.graphs ? new GraphView(data, selection) : null;

const SECTIONS = [
  data.comparison && comparisonSection(data.comparison),
  graphView?.element,
  data.layers && layersSection(data, selection),
  data.calibration && calibrationSection(data.calibration),
  data.sensitivity && sensitivitySection(data.sensitivity),
  data.studies && studiesSection(data.studies),
  data.figures && sweepsSection(data.figures),
  data.generation && generationSection(data.generation),
  data.sharding && shardingSection(data.sharding),
  data.hardware && hardwareSection(data.hardware),
  data.routing && routingSection(data.routing),
  data.provenance && provenanceSection(data.provenance),
].filter(Boolean);

if (data.cards) main.append(cardsRow(data.cards));
main.append(...SECTIONS);
const links = SECTIONS.map((part) => h("a", { href: `#${part.id}` }, part.getAttribute("aria-label")));
document.getElementById("sections").append(...links);

const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    const link = links[SECTIONS.indexOf(target)];
    if (isIntersecting) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}, { rootMargin: "-30% 0px -60% 0px" });
for (const part of SECTIONS) watcher.observe(part);

startTheme(document.getElementById("theme"));
graphView?.start();
selection.read();
