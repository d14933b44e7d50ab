"use strict";
// Documents are added and removed in the form. The answer arrives when it is there: choosing a part of it lights up what
// the model read; parts of that are left out and the answer's probability asked again. Text from the server is escaped
// HTML (the card) or goes in through textContent.
const documents = document.getElementById("documents");
const answer = document.getElementById("answer");

function withButton(box) {
  const drop = box.querySelector("[data-drop]");
  drop.hidden = false;
  drop.addEventListener("click", () => {
    box.remove();
    document.getElementById("add").focus();
  });
}

document.querySelectorAll("#documents .document").forEach(withButton);
const add = document.getElementById("add");
add.hidden = false;
add.addEventListener("click", () => {
  documents.append(document.getElementById("blank").content.cloneNode(true));
  withButton(documents.lastElementChild);
  documents.lastElementChild.querySelector("input").focus();
});

function live(box) {
  const { levels, best, sums, logProbs, tokens } = JSON.parse(box.dataset.values);
  const parts = [...box.querySelectorAll("[data-row]")], units = [...box.querySelectorAll("[data-unit]")];
  const sections = [...box.querySelectorAll("[data-section]")], bars = [...box.querySelectorAll("#bars li")];
  const told = box.querySelector("#told"), restore = box.querySelector("#restore");
  const gone = new Set();
  let chosen = 0, asking = 0, now = logProbs;

  const within = (section) => [...section.querySelectorAll("[data-unit]")].map((unit) => unit.dataset.unit);
  const signed = (value) => (value < 0 ? "" : "+") + Number(value.toPrecision(3));

  function light(row) {
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

  function draw() {
    bars[1].hidden = !chosen;
    [0, chosen].forEach((row, place) => {
      const share = (value) => String(100 * Math.exp(value / tokens[row]));
      const [bar, drawn] = [bars[place], bars[place].querySelector("rect:not(.was)")];
      const before = bar.querySelector(".was") || drawn.cloneNode();
      before.setAttribute("class", "was");
      before.setAttribute("width", share(logProbs[row]));
      drawn.after(before);
      drawn.setAttribute("width", share(now[row]));
      bar.querySelector(".value").textContent = now[row].toFixed(2);
    });
  }

  function tell() {
    const row = chosen, whole = sections.filter((each) => within(each).length && within(each).every((unit) => gone.has(unit)));
    const names = whole.map((each) => each.querySelector("h3").firstChild.textContent.trim());
    const more = gone.size - whole.flatMap(within).filter((unit, at, all) => all.indexOf(unit) === at).length;
    const left = [...names, ...(more ? [`${more} part${more > 1 ? "s" : ""}`] : [])].join(", ");
    const chance = (value) => Number(Math.exp(value).toPrecision(2));
    told.textContent = gone.size
      ? `Without ${left}: log-probability ${now[row].toFixed(2)} instead of ${logProbs[row].toFixed(2)}, ` +
        `probability ${chance(now[row])} instead of ${chance(logProbs[row])}`
      : "";
  }

  async function ask() {
    light(chosen);
    restore.hidden = !gone.size;
    for (const section of sections) {
      const button = section.querySelector("[data-leave]"), own = within(section);
      if (button) button.setAttribute("aria-pressed", String(own.length > 0 && own.every((unit) => gone.has(unit))));
    }
    const mine = ++asking;
    bars[0].parentElement.setAttribute("aria-busy", "true");
    const form = new URLSearchParams(answer.dataset.query);
    form.set("removed", [...gone].join(","));
    const headers = { "x-csrf-token": document.querySelector("meta[name=csrf]").content, accept: "application/json" };
    const reply = await fetch("/chat/without", { method: "POST", body: form, headers }).catch(() => null);
    const found = await reply?.json().catch(() => null);
    if (mine !== asking) return;
    bars[0].parentElement.removeAttribute("aria-busy");
    if (!reply?.ok || !found?.length) {
      told.textContent = found?.error || "No answer came, the bars are those from before.";
      return;
    }
    now = found;
    draw();
    tell();
  }

  function flip(own) {
    const all = own.every((unit) => gone.has(unit));
    for (const unit of own) all ? gone.delete(unit) : gone.add(unit);
    ask();
  }

  function choose(part) {
    chosen = chosen === Number(part.dataset.row) ? 0 : Number(part.dataset.row);
    light(chosen);
    draw();
    tell();
  }

  function walk(group, at, event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = step && group[at + step];
    if (!next) return;
    event.preventDefault();
    group[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  function buttons(group, press) {
    group.forEach((each, at) => {
      each.setAttribute("role", "button");
      each.setAttribute("aria-pressed", "false");
      each.tabIndex = at ? -1 : 0;
      each.addEventListener("click", () => press(each));
      each.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          press(each);
        } else walk(group, at, event);
      });
    });
  }

  buttons(parts, choose);
  for (const part of parts) {
    part.addEventListener("pointerenter", () => light(Number(part.dataset.row)));
    part.addEventListener("pointerleave", () => light(chosen));
  }
  for (const section of sections) {
    buttons([...section.querySelectorAll("[data-unit]")], (unit) => flip([unit.dataset.unit]));
    const leave = section.querySelector("[data-leave]");
    if (!leave || !within(section).length) continue;
    leave.hidden = false;
    leave.addEventListener("click", () => flip(within(section)));
  }
  restore.addEventListener("click", () => {
    gone.clear();
    ask();
  });
}

if (answer?.querySelector(".waiting")) {
  const source = new EventSource(`/chat/stream?${answer.dataset.query}`);
  const bar = answer.querySelector("progress");
  source.addEventListener("progress", (event) => (bar.value = JSON.parse(event.data).share));
  source.addEventListener("card", (event) => {
    answer.innerHTML = JSON.parse(event.data).html;
    answer.querySelectorAll(".exchange").forEach(live);
    document.getElementById("arrived").textContent = "The answer is here";
  });
  const end = () => {
    source.close();
    if (bar.isConnected) bar.replaceWith("No answer came: load the page again.");
  };
  source.addEventListener("end", end);
  source.addEventListener("error", () => source.readyState === EventSource.CLOSED && end());
} else answer?.querySelectorAll(".exchange").forEach(live);
