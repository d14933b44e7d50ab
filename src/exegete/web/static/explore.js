"use strict";
// Cards arrive when their method is done; units can be removed and the input predicted again. Text from the server is
// escaped HTML (cards) or is inserted as textContent, so it is never parsed as markup.
const answers = document.getElementById("answers");
const list = document.getElementById("bars");
const all = document.getElementById("all");
const gone = new Set();
let latest = 0;
let most = list && list.querySelectorAll("li:not([hidden])").length;

function activateCard(card) {
  const parts = [...card.querySelectorAll("[data-unit]")];
  parts.forEach((part, place) => {
    part.setAttribute("role", "button");
    part.setAttribute("aria-pressed", String(gone.has(part.dataset.unit)));
    if (!part.textContent) part.setAttribute("aria-label", part.title);
    // One tab stop per card: with one per word, the keyboard could hardly leave a long text. Arrow keys move inside.
    part.tabIndex = place ? -1 : 0;
    part.classList.toggle("gone", gone.has(part.dataset.unit));
  });
  const tools = card.querySelector(".tools");
  if (tools && parts.length) {
    const units = new Set(parts.map((part) => part.dataset.unit));
    tools.querySelector("input").max = String(units.size);
    tools.hidden = false;
  }
}

function findStrongest(card, count) {
  const scores = new Map();
  for (const part of card.querySelectorAll("[data-unit]")) scores.set(part.dataset.unit, Number(part.dataset.score));
  const ranked = [...scores].sort((a, b) => b[1] - a[1]);
  return ranked.slice(0, count).map(([unit]) => unit);
}

function showRemoved() {
  for (const part of answers.querySelectorAll("[data-unit]")) {
    const without = gone.has(part.dataset.unit);
    part.classList.toggle("gone", without);
    part.setAttribute("aria-pressed", String(without));
  }
  const removed = document.getElementById("removed");
  removed.textContent = gone.size ? `without ${gone.size} part${gone.size > 1 ? "s" : ""}` : "";
  document.getElementById("restore").hidden = !gone.size;
}

async function predictWithout() {
  showRemoved();
  list.setAttribute("aria-busy", "true");
  const request = ++latest;
  const form = new URLSearchParams(answers.dataset.query);
  form.set("removed", [...gone].join(","));
  const reply = await postForm("/explore/without", form);
  // Replies can overtake each other: only the one to the latest request is shown.
  if (request !== latest) return;
  list.removeAttribute("aria-busy");
  if (!reply?.ok) {
    document.getElementById("removed").textContent = reply?.content.error || "No answer from the server: the bars are unchanged.";
    return;
  }
  const labels = reply.content;
  const bars = new Map([...list.children].map((bar) => [bar.dataset.label, bar]));
  labels.forEach(({ label, value }, place) => {
    const bar = bars.get(label) || [...bars.values()][place];
    const drawn = bar.querySelector("rect:not(.was)");
    if (!bar.querySelector(".was")) {
      const before = drawn.cloneNode();
      before.setAttribute("class", "was");
      drawn.after(before);
    }
    drawn.setAttribute("width", String(Math.max(0, 100 * value)));
    bar.querySelector(".name").textContent = label;
    bar.querySelector(".value").textContent = value.toFixed(3);
  });
  if (all) sortBars(labels);
}

function sortBars(labels) {
  const values = new Map(labels.map(({ label, value }) => [label, value]));
  const ranked = [...list.children].sort((a, b) => values.get(b.dataset.label) - values.get(a.dataset.label));
  ranked.forEach((bar, place) => (bar.hidden = place >= most));
  list.append(...ranked);
}

function toggle(part) {
  const unit = part.dataset.unit;
  if (!gone.delete(unit)) gone.add(unit);
  for (const range of answers.querySelectorAll("[data-strongest]")) range.value = "0";
  predictWithout();
}

function showScore(part) {
  const text = part.textContent || part.title;
  document.getElementById("pointed").textContent = `${text.trim()}: ${Number(part.dataset.score).toPrecision(3)}`;
}

if (answers) {
  const partOf = (event) => event.target.closest("[data-unit]");
  answers.addEventListener("click", (event) => partOf(event) && toggle(partOf(event)));
  answers.addEventListener("pointerover", (event) => partOf(event) && showScore(partOf(event)));
  answers.addEventListener("focusin", (event) => partOf(event) && showScore(partOf(event)));
  answers.addEventListener("keydown", (event) => {
    const part = partOf(event);
    if (!part) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      toggle(part);
    } else moveFocus([...part.closest("article").querySelectorAll("[data-unit]")], part, event);
  });
  answers.addEventListener("input", (event) => {
    if (!event.target.matches("[data-strongest]")) return;
    gone.clear();
    findStrongest(event.target.closest("article"), Number(event.target.value)).forEach((unit) => gone.add(unit));
    for (const range of answers.querySelectorAll("[data-strongest]")) if (range !== event.target) range.value = "0";
    predictWithout();
  });
  document.getElementById("restore").addEventListener("click", () => {
    gone.clear();
    for (const range of answers.querySelectorAll("[data-strongest]")) range.value = "0";
    predictWithout();
  });
  if (all) {
    all.hidden = false;
    all.addEventListener("click", () => {
      most = list.children.length;
      for (const bar of list.children) bar.hidden = false;
      all.hidden = true;
    });
  }
  const waiting = new Map([...answers.querySelectorAll(".waiting")].map((card) => [card.dataset.method, card]));
  answers.querySelectorAll("article:not(.waiting)").forEach(activateCard);
  if (waiting.size) {
    const count = waiting.size;
    openStream(`/explore/stream?${answers.dataset.query}`, {
      progress: ({ method, share }) => {
        const card = waiting.get(method);
        if (card) card.querySelector("progress").value = share;
      },
      card: ({ method, html }) => {
        if (!waiting.has(method)) return;
        const template = document.createElement("template");
        template.innerHTML = html;
        const card = template.content.firstElementChild;
        waiting.get(method).replaceWith(card);
        waiting.delete(method);
        activateCard(card);
        document.getElementById("arrived").textContent = `${count - waiting.size} of ${count} explanations have arrived`;
      },
    }, (message) => {
      for (const card of waiting.values()) card.querySelector("progress").replaceWith(message);
    });
  }
}
