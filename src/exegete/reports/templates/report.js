"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
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
