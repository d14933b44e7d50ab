"use strict";
// Documents can be added to the form and removed. Choosing a part of the answer highlights its sources; units of the
// prompt can be removed and the answer scored again. Text from the server is escaped HTML (the card) or is inserted as
// textContent, so it is never parsed as markup.
const documents = document.getElementById("documents");
const answer = document.getElementById("answer");

const ask = document.getElementById("ask");
const add = document.getElementById("add"), files = document.getElementById("files");
const method = document.getElementById("method"), cost = document.getElementById("cost");
const COST_DELAY = 700;
let stream = null, costTimer = 0, costRequest = null;

function addRemoveButton(box) {
  const drop = box.querySelector("[data-drop]");
  drop.hidden = false;
  drop.addEventListener("click", () => {
    box.remove();
    add.focus();
    noticeChange();
  });
}

function addDocument() {
  documents.append(document.getElementById("blank").content.cloneNode(true));
  addRemoveButton(documents.lastElementChild);
  return documents.lastElementChild;
}

async function addFiles(chosen) {
  const refused = [];
  for (const file of chosen) {
    // A character has at most four bytes: a larger file is refused without reading it.
    const isLarge = file.size > 4 * Number(document.querySelector("[data-limit]").dataset.limit);
    const text = isLarge ? "" : await file.text();
    if (isLarge || /[\0\ufffd]/.test(text)) {
      refused.push(`${file.name} is ${isLarge ? "too long" : "no text in UTF-8"}`);
      continue;
    }
    const fields = (box) => [...box.querySelectorAll("input, textarea")];
    const box = [...documents.children].find((each) => fields(each).every((field) => !field.value)) || addDocument();
    [fields(box)[0].value, fields(box)[1].value] = [file.name.replace(/\.[^.]*$/, ""), text];
  }
  document.getElementById("dropped").textContent = refused.join("; ");
  noticeChange();
}

function showCost() {
  const { passes, time } = method.selectedOptions[0]?.dataset || {};
  cost.textContent = passes ? `At most ${passes}, about ${time}, after the answer is written.` : "";
}

async function askForCosts() {
  // While an answer is written, the only thread for models is busy.
  if (stream) return;
  const isComplete = ask.checkValidity();
  costRequest?.abort();
  costRequest = new AbortController();
  const { signal } = costRequest;
  // Of a form that is not complete, the model alone: it decides which methods there are.
  const fields = isComplete ? new FormData(ask) : ["model", "method"].filter((name) => ask[name]?.value).map((name) => [name, ask[name].value]);
  const reply = await postForm("/chat/costs", new URLSearchParams(fields), { signal });
  if (signal.aborted || !reply?.ok) return;
  const { methods, problem } = reply.content;
  const chosen = methods.some(({ name }) => name === method.value) ? method.value : reply.content.default;
  method.replaceChildren(...methods.map(({ name, title, passes, time }) => {
    const option = new Option(time ? `${title} – ${time}` : title, name, false, name === chosen);
    Object.assign(option.dataset, { passes, time });
    return option;
  }));
  showCost();
  if (problem && isComplete) cost.textContent = problem;
}

function noticeChange() {
  showSizes();
  clearTimeout(costTimer);
  costTimer = setTimeout(askForCosts, COST_DELAY);
}

document.querySelectorAll("#documents .document").forEach(addRemoveButton);
add.hidden = files.hidden = false;
document.getElementById("costs").hidden = true;
add.addEventListener("click", () => addDocument().querySelector("input").focus());
files.querySelector("input").addEventListener("change", async (event) => {
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
ask.addEventListener("input", (event) => (event.target === method ? showCost() : noticeChange()));
// The browser keeps this page, and its stream, until the next page answers.
ask.addEventListener("submit", () => stream?.close());

function activateExchange(box) {
  const { levels, best, sums, logProbs, tokens } = JSON.parse(box.dataset.values);
  const parts = [...box.querySelectorAll("[data-row]")], units = [...box.querySelectorAll("[data-unit]")];
  const sections = [...box.querySelectorAll("[data-section]")], bars = [...box.querySelectorAll("#bars li")];
  const effect = box.querySelector("#effect"), restore = box.querySelector("#restore");
  const gone = new Set();
  let chosen = 0, latest = 0, current = logProbs;

  const unitsOf = (section) => [...section.querySelectorAll("[data-unit]")].map((unit) => unit.dataset.unit);
  const signed = (value) => (value < 0 ? "" : "+") + Number(value.toPrecision(3));

  function highlightRow(row) {
    for (const unit of units) {
      const level = levels[row][unit.dataset.unit];
      unit.className = level ? (level < 0 ? "n" : box.dataset.shade) + Math.abs(level) : "";
      unit.classList.toggle("gone", gone.has(unit.dataset.unit));
      unit.setAttribute("aria-pressed", String(gone.has(unit.dataset.unit)));
    }
    for (const part of parts) part.setAttribute("aria-pressed", String(Number(part.dataset.row) === row));
    for (const section of sections) section.querySelector("[data-sum]").textContent = signed(sums[row][section.dataset.section]);
    box.querySelector("#best").textContent = best[row];
  }

  function drawBars() {
    bars[1].hidden = !chosen;
    [0, chosen].forEach((row, place) => {
      const share = (value) => String(100 * Math.exp(value / tokens[row]));
      const [bar, drawn] = [bars[place], bars[place].querySelector("rect:not(.was)")];
      const before = bar.querySelector(".was") || drawn.cloneNode();
      before.setAttribute("class", "was");
      before.setAttribute("width", share(logProbs[row]));
      drawn.after(before);
      drawn.setAttribute("width", share(current[row]));
      bar.querySelector(".value").textContent = current[row].toFixed(2);
    });
  }

  function describeEffect() {
    const row = chosen, whole = sections.filter((each) => unitsOf(each).length && unitsOf(each).every((unit) => gone.has(unit)));
    const names = whole.map((each) => each.querySelector("h3").firstChild.textContent.trim());
    const more = gone.size - whole.flatMap(unitsOf).filter((unit, at, all) => all.indexOf(unit) === at).length;
    const left = [...names, ...(more ? [`${more} part${more > 1 ? "s" : ""}`] : [])].join(", ");
    const chance = (value) => Number(Math.exp(value).toPrecision(2));
    effect.textContent = gone.size
      ? `Without ${left}: log-probability ${current[row].toFixed(2)} instead of ${logProbs[row].toFixed(2)}, ` +
        `probability ${chance(current[row])} instead of ${chance(logProbs[row])}`
      : "";
  }

  async function scoreWithout() {
    highlightRow(chosen);
    restore.hidden = !gone.size;
    for (const section of sections) {
      const button = section.querySelector("[data-leave]"), own = unitsOf(section);
      if (button) button.setAttribute("aria-pressed", String(own.length > 0 && own.every((unit) => gone.has(unit))));
    }
    const request = ++latest;
    bars[0].parentElement.setAttribute("aria-busy", "true");
    const form = new URLSearchParams({ removed: [...gone].join(",") });
    const reply = await postForm(`${answer.dataset.address}/without`, form);
    // Replies can overtake each other: only the one to the latest request is shown.
    if (request !== latest) return;
    bars[0].parentElement.removeAttribute("aria-busy");
    if (!reply?.ok || !reply.content.length) {
      effect.textContent = reply?.content.error || "No answer from the server: the bars are unchanged.";
      return;
    }
    current = reply.content;
    drawBars();
    describeEffect();
  }

  function toggleUnits(own) {
    const all = own.every((unit) => gone.has(unit));
    for (const unit of own) all ? gone.delete(unit) : gone.add(unit);
    scoreWithout();
  }

  function choosePart(part) {
    chosen = chosen === Number(part.dataset.row) ? 0 : Number(part.dataset.row);
    highlightRow(chosen);
    drawBars();
    describeEffect();
  }

  function makeButtons(group, press) {
    group.forEach((each, at) => {
      each.setAttribute("role", "button");
      each.setAttribute("aria-pressed", "false");
      each.tabIndex = at ? -1 : 0;
      each.addEventListener("click", () => press(each));
      each.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          press(each);
        } else moveFocus(group, each, event);
      });
    });
  }

  makeButtons(parts, choosePart);
  for (const part of parts) {
    part.addEventListener("pointerenter", () => highlightRow(Number(part.dataset.row)));
    part.addEventListener("pointerleave", () => highlightRow(chosen));
  }
  for (const section of sections) {
    makeButtons([...section.querySelectorAll("[data-unit]")], (unit) => toggleUnits([unit.dataset.unit]));
    const leave = section.querySelector("[data-leave]");
    if (!leave || !unitsOf(section).length) continue;
    leave.hidden = false;
    leave.addEventListener("click", () => toggleUnits(unitsOf(section)));
  }
  restore.addEventListener("click", () => {
    gone.clear();
    scoreWithout();
  });
}

function readAnswer() {
  const bar = answer.querySelector("progress"), written = document.getElementById("written");
  const stop = document.getElementById("stop"), arrived = document.getElementById("arrived");
  const finish = (message) => {
    stream = null;
    stop.remove();
    if (bar.isConnected) bar.replaceWith(message);
    noticeChange();
  };
  stream = openStream(`${answer.dataset.address}/stream`, {
    progress: ({ share }) => (bar.value = share),
    text: ({ text }) => (written.textContent += text),
    card: ({ html }) => {
      answer.innerHTML = html;
      answer.querySelectorAll(".exchange").forEach(activateExchange);
      arrived.textContent = "The answer has arrived";
    },
  }, finish);
  stop.hidden = false;
  stop.addEventListener("click", () => {
    stream.close();
    finish("Stopped: press Explain to ask again.");
    arrived.textContent = "Stopped";
    document.querySelector("#ask .main").focus();
  });
}

if (answer?.querySelector(".waiting")) readAnswer();
else {
  answer?.querySelectorAll(".exchange").forEach(activateExchange);
  noticeChange();
}
