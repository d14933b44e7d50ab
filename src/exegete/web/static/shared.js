"use strict";
// What the pages of the explorer and of the chat share.

async function postForm(address, form, options = {}) {
  // Returns the JSON of the answer, or null where none came.
  const headers = { "x-csrf-token": document.querySelector("meta[name=csrf]").content, accept: "application/json" };
  const reply = await fetch(address, { method: "POST", body: form, headers, ...options }).catch(() => null);
  const content = await reply?.json().catch(() => null);
  return content && { ok: reply.ok, content };
}

function openStream(address, handlers, finish) {
  const source = new EventSource(address);
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  }
  const end = (problem) => {
    // Without `close`, EventSource would connect again and repeat the explanations.
    source.close();
    finish(problem || "No answer from the server: reload the page.");
  };
  source.addEventListener("end", (event) => end(JSON.parse(event.data).problem));
  source.addEventListener("error", () => source.readyState === EventSource.CLOSED && end());
  return source;
}

function moveFocus(parts, part, event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const next = step && parts[parts.indexOf(part) + step];
  if (!next) return;
  event.preventDefault();
  part.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function showSize(size) {
  // Says how many characters the texts have, and keeps the browser from sending too many.
  const fields = [...size.closest("form").querySelectorAll(size.dataset.counts)];
  const count = fields.reduce((sum, field) => sum + [...field.value].length, 0), most = Number(size.dataset.limit);
  const number = (value) => value.toLocaleString("en");
  size.textContent = size.textContent.replace(/^.*characters/, `${number(count)} of ${number(most)} characters`);
  size.classList.toggle("over", count > most);
  fields.forEach((field, place) => field.setCustomValidity(
    !place && count > most ? `Shorten the texts by ${number(count - most)} characters.` : ""));
}

function showSizes() {
  document.querySelectorAll("[data-limit]").forEach(showSize);
}

document.addEventListener("input", showSizes);
showSizes();
