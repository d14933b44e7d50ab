"use strict";
// One page for every task. Results arrive when they are done; units of the input can be removed and the model run again;
// a part of a generated answer can be chosen. Text from the server is escaped HTML (output and cards) or is inserted as
// textContent, so it is never parsed as markup.
const ask = document.getElementById("ask"), answer = document.getElementById("answer");
const size = document.getElementById("size"), cost = document.getElementById("cost");
const documents = document.getElementById("documents"), add = document.getElementById("add");
const marks = document.getElementById("marks");
const COST_DELAY = 700, gone = new Set(), all = (selector, inside = answer) => [...inside.querySelectorAll(selector)];
let stream = null, costTimer = 0, costRequest = null;
// The outputs of the whole input and without the removed units, the chosen part of an answer, and the visible bars.
let before = [], current = [], chosen = 0, most = 0, latest = 0;

document.documentElement.classList.add("scripts");

async function postForm(address, form, accept, options = {}) {
  // Returns the response, or null if none came.
  const headers = { "x-csrf-token": document.querySelector("meta[name=csrf]").content, accept };
  return fetch(address, { method: "POST", body: form, headers, ...options }).catch(() => null);
}

// The form: sizes of texts, documents, costs of methods.

function showSize() {
  if (!size) return;
  const fields = all("textarea, [name=name]", ask), limit = Number(size.dataset.limit);
  const count = fields.reduce((sum, field) => sum + [...field.value].length, 0);
  const number = (value) => value.toLocaleString("en");
  size.textContent = `${number(count)} of ${number(limit)} characters in all texts`;
  size.classList.toggle("over", count > limit);
  // The browser then does not send the form.
  fields[0].setCustomValidity(count > limit ? `Shorten the texts by ${number(count - limit)} characters.` : "");
}

function noticeChange() {
  showSize();
  clearTimeout(costTimer);
  costRequest?.abort();
  if (cost) costTimer = setTimeout(askForCosts, COST_DELAY);
}

function addDocument() {
  documents.append(document.getElementById("blank").content.cloneNode(true));
  return documents.lastElementChild;
}

async function addFiles(chosenFiles) {
  const refused = [];
  for (const file of chosenFiles) {
    // A character has at most four bytes: a larger file is refused without reading it.
    const isLarge = file.size > 4 * Number(size.dataset.limit);
    const text = isLarge ? "" : await file.text();
    if (isLarge || /[\0\ufffd]/.test(text)) {
      refused.push(`${file.name} is ${isLarge ? "too long" : "no text in UTF-8"}`);
      continue;
    }
    const fields = (box) => all("input, textarea", box);
    const box = [...documents.children].find((each) => fields(each).every((field) => !field.value)) || addDocument();
    [fields(box)[0].value, fields(box)[1].value] = [file.name.replace(/\.[^.]*$/, ""), text];
  }
  document.getElementById("dropped").textContent = refused.join("; ");
  noticeChange();
}

async function askForCosts() {
  // While an answer is written, the only thread for models is busy.
  if (stream) return;
  costRequest = new AbortController();
  const { signal } = costRequest, isComplete = ask.checkValidity();
  // Of a form that is not complete, the model alone: it decides which methods there are.
  const fields = [...new FormData(ask)].filter(([name]) => isComplete || ["model", "method"].includes(name));
  const reply = await postForm("/explore/costs", new URLSearchParams(fields), "text/html", { signal });
  const text = await reply?.text().catch(() => null);
  if (signal.aborted || !text) return;
  const page = new DOMParser().parseFromString(text, "text/html"), chips = "#methods .chips", focused = document.activeElement;
  if (!page.querySelector(chips)) return;
  document.querySelector(chips).replaceChildren(...page.querySelector(chips).children);
  if (focused.name === "method") all("[name=method]", ask).find((box) => box.value === focused.value)?.focus();
  const problem = isComplete && page.querySelector("[role=alert]");
  cost.textContent = (problem || page.querySelector("#cost"))?.textContent || "";
}

function activateForm() {
  ask.addEventListener("input", noticeChange);
  // The browser keeps this page, and its stream, until the next page answers.
  ask.addEventListener("submit", () => stream?.close());
  if (!documents) return;
  add.addEventListener("click", () => addDocument().querySelector("input").focus());
  documents.addEventListener("click", (event) => {
    if (!event.target.matches("[data-drop]")) return;
    event.target.closest(".document").remove();
    add.focus();
    noticeChange();
  });
  document.querySelector("#files input").addEventListener("change", async (event) => {
    await addFiles(event.target.files);
    event.target.value = "";
  });
  for (const name of ["dragenter", "dragover"]) {
    documents.addEventListener(name, (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
  }
  documents.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    addFiles(event.dataTransfer.files);
  });
}

// The output: bars of labels, or of an answer and its chosen part.

const bars = () => document.getElementById("bars");
const units = (inside = answer) => all("[data-unit]", inside);
const names = (inside) => [...new Set(units(inside).map((unit) => unit.dataset.unit))];
const isWhole = (section) => names(section).every((unit) => gone.has(unit));

function activateOutput() {
  before = current = JSON.parse(bars().dataset.outputs);
  most = all("li:not([hidden])", bars()).length;
  makeButtons(document.getElementById("output"));
  document.getElementById("restore").addEventListener("click", () => remove([]));
  document.getElementById("all")?.addEventListener("click", (event) => {
    most = bars().children.length;
    for (const bar of bars().children) bar.hidden = false;
    event.target.hidden = true;
  });
}

function drawBars() {
  const placed = [...bars().children];
  for (const bar of placed) {
    const { value, share } = current[bar.dataset.place], drawn = bar.querySelector("rect:not(.was)");
    if (!bar.querySelector(".was")) {
      const outline = drawn.cloneNode();
      outline.setAttribute("class", "was");
      drawn.after(outline);
    }
    drawn.setAttribute("width", String(100 * share));
    bar.querySelector(".value").textContent = value.toFixed(3);
    if (all("[data-row]").length) bar.hidden = ![0, chosen].includes(Number(bar.dataset.place));
  }
  if (document.getElementById("all")) {
    placed.sort((one, other) => current[other.dataset.place].value - current[one.dataset.place].value);
    placed.forEach((bar, rank) => (bar.hidden = rank >= most));
    bars().append(...placed);
  }
}

function describeRemoved() {
  const whole = all("[data-leave]").map((leave) => leave.closest("[data-section]")).filter(isWhole);
  const left = [...new Set(whole.map((section) => section.querySelector("h4").firstChild.textContent.trim()))];
  const more = gone.size - new Set(whole.flatMap(names)).size;
  if (more) left.push(`${more} part${more > 1 ? "s" : ""}`);
  const chance = ({ value }) => Number(Math.exp(value).toPrecision(2)), [now, then] = [current[chosen], before[chosen]];
  const effect = all("[data-row]").length ? `: log-probability ${now.value.toFixed(2)} instead of ${then.value.toFixed(2)}, ` +
    `probability ${chance(now)} instead of ${chance(then)}` : "";
  document.getElementById("removed").textContent = gone.size ? `without ${left.join(", ")}${effect}` : "";
}

// The input: its units are removed, together in all cards.

function showRemoved() {
  for (const unit of units()) {
    unit.classList.toggle("gone", gone.has(unit.dataset.unit));
    const isPressed = unit.closest(".marking") ? unit.classList.contains("gold") : gone.has(unit.dataset.unit);
    unit.setAttribute("aria-pressed", String(isPressed));
  }
  for (const leave of all("[data-leave]")) leave.setAttribute("aria-pressed", String(isWhole(leave.closest("[data-section]"))));
  document.getElementById("restore").hidden = !gone.size;
}

async function remove(removed, source = null) {
  gone.clear();
  for (const unit of removed) gone.add(unit);
  for (const range of all("[data-strongest]")) if (range !== source) range.value = "0";
  showRemoved();
  bars().setAttribute("aria-busy", "true");
  const request = ++latest, form = new URLSearchParams(answer.dataset.query);
  form.set("removed", removed.join(","));
  const reply = await postForm("/explore/without", form, "application/json");
  const content = await reply?.json().catch(() => null);
  // Replies can overtake each other: only the one to the latest request is shown.
  if (request !== latest) return;
  bars().removeAttribute("aria-busy");
  if (!reply?.ok || !content) {
    document.getElementById("removed").textContent = content?.error || "No answer from the server: the bars are unchanged.";
    return;
  }
  current = content;
  drawBars();
  describeRemoved();
}

function toggle(own) {
  const isGone = own.every((unit) => gone.has(unit));
  remove(isGone ? [...gone].filter((unit) => !own.includes(unit)) : [...new Set([...gone, ...own])]);
}

function findStrongest(card, count) {
  const scores = new Map(units(card).map((unit) => [unit.dataset.unit, Number(unit.dataset.score)]));
  return [...scores].sort((one, other) => other[1] - one[1]).slice(0, count).map(([unit]) => unit);
}

// The cards: one per method, with the scores of the chosen part of an answer.

function showRow(row, cards = all("[data-rows]")) {
  for (const card of cards) {
    const { levels, scores, sums, best } = card.rows;
    for (const unit of units(card)) {
      const level = levels[row][unit.dataset.unit], score = scores[row][unit.dataset.unit];
      // The regions of an image are SVG paths, whose className is read-only.
      unit.setAttribute("class", level ? (level < 0 ? "n" : card.dataset.shade) + Math.abs(level) : "");
      [unit.dataset.score, unit.title] = [score, signed(score)];
    }
    for (const section of all("[data-section]", card)) section.querySelector("[data-sum]").textContent = signed(sums[row][section.dataset.section]);
    card.querySelector("[data-best]").textContent = best[row];
  }
  for (const part of all("[data-row]")) part.setAttribute("aria-pressed", String(Number(part.dataset.row) === row));
  showRemoved();
}

const signed = (value) => (value < 0 ? "" : "+") + Number(value.toPrecision(3));

function chooseRow(row) {
  chosen = chosen === row ? 0 : row;
  showRow(chosen);
  drawBars();
  describeRemoved();
}

function activateCard(card) {
  makeButtons(card);
  for (const leave of all("[data-leave]", card)) {
    leave.addEventListener("click", () => toggle(names(leave.closest("[data-section]"))));
  }
  activateMarks(card);
  if (!card.dataset.rows) return showRemoved();
  card.rows = JSON.parse(card.dataset.rows);
  showRow(chosen, [card]);
}

// Marks: the highlighted words of a card are corrected; rows stay in this browser until they are downloaded.

const readRows = () => JSON.parse(localStorage.getItem(marks.dataset.key) || "[]");

function findSpans(text) {
  // Characters are counted as Python counts them, and neighboring marked words are one span.
  const spans = [];
  let end = 0, wasMarked = false;
  for (const node of text.childNodes) {
    const start = end;
    end += [...node.textContent].length;
    if (!node.dataset?.unit) continue;
    const isMarked = node.classList.contains("gold");
    if (isMarked && wasMarked) spans.at(-1)[1] = end;
    else if (isMarked) spans.push([start, end]);
    wasMarked = isMarked;
  }
  return spans;
}

function toggleMarking(card) {
  const isMarking = card.classList.toggle("marking"), saving = card.querySelector("[data-saving]");
  card.querySelector("[data-mark]").setAttribute("aria-pressed", String(isMarking));
  saving.hidden = !isMarking;
  // What speaks for the label is the first suggestion.
  for (const unit of units(card)) unit.classList.toggle("gold", isMarking && /\b[pu]\d/.test(unit.className));
  showRemoved();
}

function saveRow(card) {
  const [text, pair] = all(".words", card), row = { text: text.textContent, label: card.querySelector("select").value };
  row.rationale = findSpans(text);
  if (pair) Object.assign(row, { text_pair: pair.textContent, rationale_pair: findSpans(pair) });
  const others = readRows().filter((each) => each.text !== row.text || each.text_pair !== row.text_pair);
  localStorage.setItem(marks.dataset.key, JSON.stringify([...others, row]));
  showRows();
}

function showRows() {
  const rows = readRows(), lines = rows.map((row) => `${JSON.stringify(row)}\n`).join("");
  marks.hidden = !rows.length;
  marks.querySelector("[role=status]").textContent = `${rows.length} ${rows.length === 1 ? "row is" : "rows are"} saved`;
  marks.querySelector("a").href = `data:application/jsonl;charset=utf-8,${encodeURIComponent(lines)}`;
}

function activateMarks(card) {
  card.querySelector("[data-mark]")?.addEventListener("click", () => toggleMarking(card));
  card.querySelector("[data-save]")?.addEventListener("click", () => saveRow(card));
}

// Units and parts are buttons for keys and screen readers.

function makeButtons(inside) {
  for (const part of all("[data-unit], [data-row]", inside)) {
    part.setAttribute("role", "button");
    part.setAttribute("aria-pressed", "false");
    if (!part.textContent) part.setAttribute("aria-label", part.title);
    // One tab stop per text: with one per word, the keyboard could hardly leave a long text. Arrow keys move inside.
    part.tabIndex = part.parentElement.querySelector("[role=button]") === part ? 0 : -1;
  }
}

function moveFocus(part, event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const group = all("[role=button]", part.parentElement), next = step && group[group.indexOf(part) + step];
  if (!next) return;
  event.preventDefault();
  [part.tabIndex, next.tabIndex] = [-1, 0];
  next.focus();
}

function press(part) {
  if (!part.closest(".marking")) return part.dataset.row ? chooseRow(Number(part.dataset.row)) : toggle([part.dataset.unit]);
  part.classList.toggle("gold");
  showRemoved();
}

function point(part) {
  if (part.dataset.row) return;
  const text = part.closest("svg") ? part.getAttribute("aria-label") : part.textContent || part.title;
  document.getElementById("pointed").textContent = `${text.trim()}: ${Number(part.dataset.score).toPrecision(3)}`;
}

function listen(name, handle) {
  answer.addEventListener(name, (event) => {
    const part = event.target.closest("[data-unit], [data-row]");
    if (part) handle(part, event);
  });
}

function activateAnswer() {
  listen("click", press);
  listen("focusin", point);
  listen("pointerover", (part) => (part.dataset.row ? showRow(Number(part.dataset.row)) : point(part)));
  listen("pointerout", (part) => part.dataset.row && showRow(chosen));
  listen("keydown", (part, event) => {
    if (event.key !== "Enter" && event.key !== " ") return moveFocus(part, event);
    event.preventDefault();
    press(part);
  });
  answer.addEventListener("input", ({ target }) => {
    if (target.matches("[data-strongest]")) remove(findStrongest(target.closest("article"), Number(target.value)), target);
  });
  if (marks) {
    marks.querySelector("button").addEventListener("click", () => {
      localStorage.removeItem(marks.dataset.key);
      showRows();
    });
    showRows();
  }
  if (bars()) activateOutput();
  all("article:not(.waiting)").forEach(activateCard);
  if (all(".waiting").length) readStream();
}

function replace(box, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const made = template.content.firstElementChild;
  box.replaceWith(made);
  return made;
}

function readStream() {
  const waiting = new Map(all("article.waiting").map((card) => [card.dataset.method, card])), count = waiting.size;
  const stop = document.getElementById("stop"), arrived = document.getElementById("arrived");
  const finish = (message) => {
    // Without `close`, EventSource would connect again and repeat the explanations.
    stream.close();
    stream = null;
    stop.remove();
    for (const bar of all("progress")) bar.replaceWith(message);
    noticeChange();
  };
  const handlers = {
    text: ({ text }) => (document.getElementById("written").textContent += text),
    output: ({ html }) => {
      replace(document.getElementById("output"), html);
      activateOutput();
    },
    progress: ({ method, share }) => waiting.has(method) && (waiting.get(method).querySelector("progress").value = share),
    card: ({ method, html }) => {
      if (!waiting.has(method)) return;
      activateCard(replace(waiting.get(method), html));
      waiting.delete(method);
      arrived.textContent = `${count - waiting.size} of ${count} explanations have arrived`;
    },
    end: ({ problem }) => finish(problem || "No answer from the server: reload the page."),
  };
  stream = new EventSource(`/explore/stream?${answer.dataset.query}`);
  for (const [name, handle] of Object.entries(handlers)) {
    stream.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  }
  stream.addEventListener("error", () => stream?.readyState === EventSource.CLOSED && handlers.end({}));
  stop.addEventListener("click", () => {
    finish("Stopped: press Explain to ask again.");
    arrived.textContent = "Stopped";
    ask.querySelector(".main").focus();
  });
}

activateForm();
if (answer) activateAnswer();
if (!stream) noticeChange();
else showSize();
