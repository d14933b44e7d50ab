for (const box of document.querySelectorAll(".expound .lit:not([data-ready])")) {
  box.dataset.ready = "";
  const levels = JSON.parse(box.dataset.levels), best = JSON.parse(box.dataset.best);
  const own = JSON.parse(box.dataset.own || "[]");
  const shade = (level) => (level ? (level < 0 ? "n" : box.dataset.shade) + Math.abs(level) : "");
  const rows = [...box.querySelectorAll("[data-row]")];
  let pinned = 0;
  const show = (row) => {
    for (const piece of box.querySelectorAll("[data-unit]")) {
      // The regions of an image are SVG paths, whose className is read-only.
      piece.setAttribute("class", shade(levels[row][piece.dataset.unit]));
    }
    for (const each of rows) {
      each.setAttribute("aria-pressed", Number(each.dataset.row) === row);
      each.className = `row ${own.length ? shade(own[row][each.dataset.row - 1]) : ""}`.trim();
    }
    box.querySelector("[role=status]").textContent = best[row];
  };
  for (const each of rows) {
    const row = Number(each.dataset.row);
    each.addEventListener("mouseenter", () => show(row));
    each.addEventListener("focus", () => show(row));
    each.addEventListener("mouseleave", () => show(pinned));
    each.addEventListener("blur", () => show(pinned));
    each.addEventListener("click", () => show((pinned = pinned === row ? 0 : row)));
    each.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      each.click();
    });
  }
}
