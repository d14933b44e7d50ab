"use strict";
// How long an example took, saving until it is saved, marking words by drawing over them, ranking by dragging. The form works without.
const form = document.getElementById("answer");
const begun = performance.now();
const button = form.querySelector("button.main");
const label = button.textContent;
addEventListener("pageshow", () => { button.disabled = false; button.textContent = label; });
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (button.disabled) return;
  form.elements.seconds.value = ((performance.now() - begun) / 1000).toFixed(1);
  const options = { method: "POST", body: new URLSearchParams(new FormData(form)), headers: { accept: "text/html" } };
  button.disabled = true;
  for (;;) {
    button.textContent = form.dataset.saving;
    const reply = await fetch(form.action, options).catch(() => null);
    if (reply?.redirected) return location.assign(reply.url);
    if (reply && reply.status !== 503) return form.submit(); // its page says what is wrong
    const pause = Number(reply?.headers.get("retry-after")) || 2;
    await new Promise((resume) => setTimeout(resume, 1000 * pause));
  }
});
let marking = null;
const boxOf = (target) => target.closest && target.closest(".mark label")?.querySelector("input");
form.addEventListener("pointerdown", (event) => {
  const box = event.pointerType === "mouse" && event.button === 0 && boxOf(event.target);
  if (!box) return;
  event.preventDefault();
  box.checked = !box.checked;
  box.focus();
  marking = box.checked;
});
form.addEventListener("pointerover", (event) => {
  const box = boxOf(event.target);
  if (marking !== null && box) box.checked = marking;
});
form.addEventListener("click", (event) => {
  // the mouse has marked already when its button went down
  if (event.detail && boxOf(event.target) && event.pointerType === "mouse") event.preventDefault();
});
addEventListener("pointerup", () => { marking = null; });
// letters dragged into order set the ranks; the buttons for ranks say the same to keys and screen readers
const list = document.querySelector(".order ol");
if (list) {
  const ranks = (item) => form.elements[`rank-${item.dataset.letter}`];
  const place = (item) => Number(ranks(item).value) || Infinity;
  const sorted = () => list.append(...[...list.children].sort((one, other) => place(one) - place(other)));
  let dragged = null, moved = false;
  const end = () => { dragged?.classList.remove("dragged"); dragged = null; };
  list.addEventListener("pointerdown", (event) => {
    dragged = event.button === 0 ? event.target.closest("li") : null;
    if (!dragged) return;
    event.preventDefault();
    list.setPointerCapture(event.pointerId);
    dragged.classList.add("dragged");
    moved = false;
  });
  list.addEventListener("pointermove", (event) => {
    const under = dragged && document.elementFromPoint(event.clientX, event.clientY)?.closest(".order li");
    if (!under || under === dragged) return;
    const ahead = dragged.compareDocumentPosition(under) & Node.DOCUMENT_POSITION_FOLLOWING;
    if (ahead) under.after(dragged); else under.before(dragged);
    moved = true;
  });
  list.addEventListener("pointerup", () => {
    if (dragged && moved) [...list.children].forEach((item, number) => { ranks(item).value = String(number + 1); });
    end();
  });
  list.addEventListener("pointercancel", () => { end(); sorted(); });
  form.addEventListener("change", sorted);
  list.parentElement.hidden = false;
  sorted();
}
