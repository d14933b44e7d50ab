"use strict";
// How long an example took, saving until it is saved, and marking words by drawing over them. The form works without.
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
