"use strict";
const root = document.documentElement, help = document.getElementById("help");
const toggle = document.getElementById("theme"), samples = [...document.querySelectorAll(".sample")];
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const paint = name => {
  if (name) root.dataset.theme = name;
  toggle.textContent = dark() ? "Light" : "Dark";
  toggle.setAttribute("aria-label", `Change to ${dark() ? "light" : "dark"} colours`);
};
const turn = () => {
  paint(dark() ? "light" : "dark");
  try { localStorage.setItem("energize-theme", root.dataset.theme); } catch { /* not kept */ }
};
let kept = null;
try { kept = localStorage.getItem("energize-theme"); } catch { /* not kept */ }
paint(kept === "light" || kept === "dark" ? kept : null);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => paint());
const show = () => help.open ? help.close() : help.showModal();
toggle.addEventListener("click", turn);
document.getElementById("keys").addEventListener("click", show);
for (const button of document.querySelectorAll("button[hidden]")) button.hidden = false;
const at = () => samples.findIndex(each => each.contains(document.activeElement));
const move = by => {
  const next = samples[at() < 0 ? (by > 0 ? 0 : samples.length - 1) : Math.min(Math.max(at() + by, 0), samples.length - 1)];
  if (next) { next.focus({ preventScroll: true }); next.scrollIntoView({ block: "nearest" }); }
};
const batch = by => {
  const link = document.querySelector(by > 0 ? "a[rel=next]" : "a[rel=prev]");
  const all = [...document.querySelectorAll(".batch")], now = samples[at()];
  const to = (now ? all.indexOf(now.closest(".batch")) : by > 0 ? -1 : all.length) + by;
  if (all.length > 1 && to >= 0 && to < all.length) {
    all[to].scrollIntoView();
    const first = all[to].querySelector(".sample");
    if (first) first.focus({ preventScroll: true });
  } else if (link) link.click();
};
const keys = {
  j: () => move(1), ArrowRight: () => move(1), k: () => move(-1), ArrowLeft: () => move(-1),
  n: () => batch(1), p: () => batch(-1), t: turn, "?": show,
  m: () => { const found = samples[at()]?.querySelector("details"); if (found) found.open = !found.open; },
};
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input")) return;
  if (help.open && event.key !== "?") return;
  const act = keys[event.key];
  if (act) { event.preventDefault(); act(); }
});
