"use strict";
// Documents can be added to the form and removed. Choosing a part of the answer highlights its sources; units of the
// prompt can be removed and the answer scored again. Text from the server is escaped HTML (the card) or is inserted as
// textContent, so it is never parsed as markup.
const documents = document.getElementById("documents");
const answer = document.getElementById("answer");

function addRemoveButton(box) {
  const drop = box.querySelector("[data-drop]");
  drop.hidden = false;
  drop.addEventListener("click", () => {
    box.remove();
    document.getElementById("add").focus();
  });
}

document.querySelectorAll("#documents .document").forEach(addRemoveButton);
const add = document.getElementById("add");
add.hidden = false;
add.addEventListener("click", () => {
  documents.append(document.getElementById("blank").content.cloneNode(true));
  addRemoveButton(documents.lastElementChild);
  documents.lastElementChild.querySelector("input").focus();
});

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
    const form = new URLSearchParams(answer.dataset.query);
    form.set("removed", [...gone].join(","));
    const headers = { "x-csrf-token": document.querySelector("meta[name=csrf]").content, accept: "application/json" };
    const reply = await fetch("/chat/without", { method: "POST", body: form, headers }).catch(() => null);
    const scores = await reply?.json().catch(() => null);
    // Replies can overtake each other: only the one to the latest request is shown.
    if (request !== latest) return;
    bars[0].parentElement.removeAttribute("aria-busy");
    if (!reply?.ok || !scores?.length) {
      effect.textContent = scores?.error || "No answer from the server: the bars are unchanged.";
      return;
    }
    current = scores;
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

  function moveFocus(group, at, event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = step && group[at + step];
    if (!next) return;
    event.preventDefault();
    group[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
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
        } else moveFocus(group, at, event);
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

if (answer?.querySelector(".waiting")) {
  const source = new EventSource(`/chat/stream?${answer.dataset.query}`);
  const bar = answer.querySelector("progress");
  source.addEventListener("progress", (event) => (bar.value = JSON.parse(event.data).share));
  source.addEventListener("card", (event) => {
    answer.innerHTML = JSON.parse(event.data).html;
    answer.querySelectorAll(".exchange").forEach(activateExchange);
    document.getElementById("arrived").textContent = "The answer has arrived";
  });
  const end = () => {
    source.close();
    if (bar.isConnected) bar.replaceWith("No answer from the server: reload the page.");
  };
  source.addEventListener("end", end);
  source.addEventListener("error", () => source.readyState === EventSource.CLOSED && end());
} else answer?.querySelectorAll(".exchange").forEach(activateExchange);
