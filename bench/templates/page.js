"use strict";
// Charts are drawn when they come into view, or all before printing; they share the page's data sets.
const SPECS = JSON.parse(document.getElementById("specs").textContent);
const DATASETS = JSON.parse(document.getElementById("datasets").textContent);
const begun = new Set();

function drawChart(element) {
  if (begun.has(element.id)) return;
  begun.add(element.id);
  const spec = SPECS[element.id];
  spec.datasets = Object.fromEntries(spec.usermeta.datasets.map((name) => [name, DATASETS[name]]));
  vegaEmbed(element, spec, {actions: {export: true, source: false, compiled: false, editor: false}, renderer: "svg"})
    .then(() => { element.dataset.drawn = "yes"; })
    .catch((error) => { element.textContent = "This chart cannot be drawn: " + error; console.error(error); });
}

const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) drawChart(entry.target);
}, {rootMargin: "400px"});
const charts = document.querySelectorAll(".chart");
charts.forEach((element) => watcher.observe(element));
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details:not(.vega-embed details)").forEach((element) => { element.open = true; });
  charts.forEach(drawChart);
});

// A link into a folded part opens it.
function openTarget() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let element = target; element; element = element.parentElement) if (element.tagName === "DETAILS") element.open = true;
  if (target) target.scrollIntoView();
}
window.addEventListener("hashchange", openTarget);
openTarget();

for (const element of document.querySelectorAll(".grid")) {
  makeGrid(element, JSON.parse(document.getElementById(element.dataset.source).textContent));
}
