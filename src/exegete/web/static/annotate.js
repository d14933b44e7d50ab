"use strict";
// How long an example took, and marking words by drawing over them. The form works without.
const form = document.getElementById("answer");
const begun = performance.now();
form.addEventListener("submit", () => {
  form.elements.seconds.value = ((performance.now() - begun) / 1000).toFixed(1);
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
