"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...[...table.tHead.rows].at(-1).cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const first = head.dataset.first || "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = before === first ? other : first;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[column].dataset.value;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const x = key(a), y = key(b);
        if (x === "" || y === "") return (x === "") - (y === "");
        const difference = Number(x) - Number(y);
        return sign * (Number.isNaN(difference) ? x.localeCompare(y) : difference);
      });
      table.tBodies[0].append(...rows);
    });
  });
}
// What is folded on a screen is printed.
const folds = [...document.querySelectorAll("#examples details, #glossary details, #meta details")];
if (matchMedia("(max-width: 40rem)").matches) folds.forEach((fold) => { fold.open = false; });
addEventListener("beforeprint", () => folds.forEach((fold) => { fold.open = true; }));
const filter = document.getElementById("filter");
if (filter) {
  filter.hidden = false;
  const boxes = [...filter.querySelectorAll("input")];
  const apply = () => {
    const shown = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    for (const part of document.querySelectorAll("[data-method]")) {
      part.classList.toggle("hidden", !shown.has(part.dataset.method));
    }
  };
  filter.addEventListener("change", apply);
  for (const [id, checked] of [["filter-all", true], ["filter-none", false]]) {
    document.getElementById(id).addEventListener("click", () => {
      boxes.forEach((box) => { box.checked = checked; });
      apply();
    });
  }
  apply();
}
const APART = 14;
function spread(chart) {
  const labels = [...chart.querySelectorAll("[data-line]:not(.off):not(.hidden) .direct")];
  for (const label of labels) label.dataset.end ??= label.parentNode.querySelector(".dot:last-of-type")?.getAttribute("cy") ?? label.getAttribute("y");
  labels.sort((a, b) => a.dataset.end - b.dataset.end);
  let lowest = Number(chart.dataset.bottom), places = labels.map((label) => Number(label.dataset.end) + 4);
  places.forEach((_, at) => { if (at) places[at] = Math.max(places[at], places[at - 1] + APART); });
  for (let at = places.length - 1; at >= 0; at--) lowest = (places[at] = Math.min(places[at], lowest)) - APART;
  labels.forEach((label, at) => label.setAttribute("y", places[at].toFixed(1)));
}
for (const button of document.querySelectorAll("[data-pick]")) {
  button.disabled = false;
  button.addEventListener("click", () => {
    const name = button.dataset.pick, shown = button.getAttribute("aria-pressed") !== "true";
    for (const each of document.querySelectorAll("[data-pick]")) {
      if (each.dataset.pick === name) each.setAttribute("aria-pressed", shown);
    }
    for (const line of document.querySelectorAll("[data-line]")) {
      if (line.dataset.line === name) line.classList.toggle("off", !shown);
    }
    document.querySelectorAll("[data-bottom]").forEach(spread);
  });
}
