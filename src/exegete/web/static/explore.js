"use strict";
// Cards arrive as they get done; parts can be deleted and the model asked again. Text from the server is already
// escaped HTML (cards) or goes in through textContent.
const answers = document.getElementById("answers");
const list = document.getElementById("bars");
const all = document.getElementById("all");
const gone = new Set();
let asking = 0;
let most = list && list.querySelectorAll("li:not([hidden])").length;

function upgrade(card) {
  const parts = [...card.querySelectorAll("[data-unit]")];
  parts.forEach((part, place) => {
    part.setAttribute("role", "button");
    part.setAttribute("aria-pressed", String(gone.has(part.dataset.unit)));
    if (!part.textContent) part.setAttribute("aria-label", part.title);
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

function strongest(card, count) {
  const scores = new Map();
  for (const part of card.querySelectorAll("[data-unit]")) scores.set(part.dataset.unit, Number(part.dataset.score));
  const ranked = [...scores].sort((a, b) => b[1] - a[1]);
  return ranked.slice(0, count).map(([unit]) => unit);
}

function show() {
  for (const part of answers.querySelectorAll("[data-unit]")) {
    const without = gone.has(part.dataset.unit);
    part.classList.toggle("gone", without);
    part.setAttribute("aria-pressed", String(without));
  }
  const removed = document.getElementById("removed");
  removed.textContent = gone.size ? `without ${gone.size} part${gone.size > 1 ? "s" : ""}` : "";
  document.getElementById("restore").hidden = !gone.size;
}

async function ask() {
  show();
  list.setAttribute("aria-busy", "true");
  const mine = ++asking;
  const form = new URLSearchParams(answers.dataset.query);
  form.set("removed", [...gone].join(","));
  const csrf = document.querySelector("meta[name=csrf]").content;
  const headers = { "x-csrf-token": csrf, accept: "application/json" };
  const reply = await fetch("/explore/without", { method: "POST", body: form, headers }).catch(() => null);
  const found = await reply?.json().catch(() => null);
  if (mine !== asking) return;
  list.removeAttribute("aria-busy");
  if (!reply?.ok || !found) {
    document.getElementById("removed").textContent = found?.error || "No answer came, the bars are those from before.";
    return;
  }
  const bars = new Map([...list.children].map((bar) => [bar.dataset.label, bar]));
  found.forEach(({ label, value }, place) => {
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
  if (all) rank(found);
}

function rank(found) {
  const values = new Map(found.map(({ label, value }) => [label, value]));
  const ranked = [...list.children].sort((a, b) => values.get(b.dataset.label) - values.get(a.dataset.label));
  ranked.forEach((bar, place) => (bar.hidden = place >= most));
  list.append(...ranked);
}

function toggle(part) {
  const unit = part.dataset.unit;
  if (!gone.delete(unit)) gone.add(unit);
  for (const range of answers.querySelectorAll("[data-strongest]")) range.value = "0";
  ask();
}

function point(part) {
  const text = part.textContent || part.title;
  document.getElementById("pointed").textContent = `${text.trim()}: ${Number(part.dataset.score).toPrecision(3)}`;
}

function walk(part, event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  const parts = [...part.closest("article").querySelectorAll("[data-unit]")];
  const next = parts[parts.indexOf(part) + step];
  if (!next) return;
  event.preventDefault();
  part.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

if (answers) {
  const partOf = (event) => event.target.closest("[data-unit]");
  answers.addEventListener("click", (event) => partOf(event) && toggle(partOf(event)));
  answers.addEventListener("pointerover", (event) => partOf(event) && point(partOf(event)));
  answers.addEventListener("focusin", (event) => partOf(event) && point(partOf(event)));
  answers.addEventListener("keydown", (event) => {
    const part = partOf(event);
    if (!part) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      toggle(part);
    } else walk(part, event);
  });
  answers.addEventListener("input", (event) => {
    if (!event.target.matches("[data-strongest]")) return;
    gone.clear();
    strongest(event.target.closest("article"), Number(event.target.value)).forEach((unit) => gone.add(unit));
    for (const range of answers.querySelectorAll("[data-strongest]")) if (range !== event.target) range.value = "0";
    ask();
  });
  document.getElementById("restore").addEventListener("click", () => {
    gone.clear();
    for (const range of answers.querySelectorAll("[data-strongest]")) range.value = "0";
    ask();
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
  answers.querySelectorAll("article:not(.waiting)").forEach(upgrade);
  if (waiting.size) {
    const source = new EventSource(`/explore/stream?${answers.dataset.query}`);
    source.addEventListener("progress", (event) => {
      const { method, share } = JSON.parse(event.data);
      const card = waiting.get(method);
      if (card) card.querySelector("progress").value = share;
    });
    const count = waiting.size;
    const end = () => {
      source.close();
      for (const card of waiting.values()) card.querySelector("progress").replaceWith("No answer came: load the page again.");
    };
    source.addEventListener("card", (event) => {
      const { method, html } = JSON.parse(event.data);
      if (!waiting.has(method)) return;
      const made = document.createElement("template");
      made.innerHTML = html;
      const card = made.content.firstElementChild;
      waiting.get(method).replaceWith(card);
      waiting.delete(method);
      upgrade(card);
      document.getElementById("arrived").textContent = `${count - waiting.size} of ${count} explanations are here`;
    });
    source.addEventListener("end", end);
    source.addEventListener("error", () => source.readyState === EventSource.CLOSED && end());
  }
}
