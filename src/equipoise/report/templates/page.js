"use strict";
const root = document.documentElement, all = (what, inside = document) => [...inside.querySelectorAll(what)];
const kept = (store, key, value) => {
  try { return value === undefined ? store.getItem(key) : store.setItem(key, value); } catch { return null; }
};

// Light or dark: as the system has it until the reader says otherwise.
const theme = document.getElementById("theme"), system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
const chosen = kept(localStorage, "theme");
if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
theme.hidden = false;
theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  kept(localStorage, "theme", root.dataset.theme);
  label();
});
system.addEventListener("change", label);
label();

// Tables: a button in every head sorts by that column; what is missing stays last.
const value = (row, column, isNumber) => {
  const text = row.cells[column].textContent.trim();
  if (text === "" || text === "–") return null;
  if (!isNumber) return text;
  const number = parseFloat(text.replace(/[,<>≥±+\s]/g, (letter) => (letter === "±" ? " " : "")).replace("−", "-"));
  return Number.isNaN(number) ? null : number;
};
const sort = (table, column, direction) => {
  const head = table.tHead.rows[0].cells[column], isNumber = head.classList.contains("n");
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: value(row, column, isNumber) }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    return sign * (isNumber ? a.key - b.key : a.key.localeCompare(b.key, "en", { numeric: true }));
  });
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", direction);
  table.tBodies[0].append(...rows.map((one) => one.row));
};
const tables = all("table").filter((table) => table.tHead && table.tBodies.length && table.tBodies[0].rows.length > 1);
for (const table of tables) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (!head.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = head.classList.contains("n") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      sort(table, column, head.getAttribute("aria-sort") === first ? other : first);
    });
  });
}

// Values under the pointer or the finger: the title of the nearest mark of a figure.
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;
document.body.append(tip);
const marks = new Map();
for (const svg of all("svg")) {
  const found = all("title", svg).filter((title) => title.parentNode !== svg);
  marks.set(svg, found.map((title) => {
    const mark = title.parentNode;
    mark.dataset.tip = title.textContent;
    title.remove(); // else the browser shows it a second time
    return mark;
  }));
}
const gap = (box, x, y) => Math.hypot(Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom));
const show = (event) => {
  const svg = event.target.closest("svg"), near = event.pointerType === "mouse" ? 8 : 24;
  let mark = event.target.closest("[data-tip]");
  if (!mark && svg) {
    const by = (one) => gap(one.getBoundingClientRect(), event.clientX, event.clientY);
    const ranked = (marks.get(svg) || []).map((one) => [by(one), one]).sort((a, b) => a[0] - b[0]);
    if (ranked.length && ranked[0][0] <= near) mark = ranked[0][1];
  }
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const box = tip.getBoundingClientRect(), above = event.clientY - box.height - 14;
  tip.style.left = `${Math.max(4, Math.min(event.clientX - box.width / 2, innerWidth - box.width - 4))}px`;
  tip.style.top = `${above > 4 ? above : event.clientY + 18}px`;
};
document.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") show(event); });
document.addEventListener("pointerdown", show);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true, capture: true });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

// Paper has no way to open what is closed.
const folds = all("details");
let closed = [];
addEventListener("beforeprint", () => {
  closed = folds.filter((fold) => !fold.open);
  for (const fold of closed) fold.open = true;
});
addEventListener("afterprint", () => { for (const fold of closed) fold.open = false; });

// A live page reads its file again until the run is finished, and looks as the reader left it.
if (root.dataset.live) {
  const place = `live ${location.pathname}`;
  const home = (one) => one.parentNode.closest("[id]");
  const name = (one) => `${home(one).id} ${all(one.tagName, home(one)).indexOf(one)}`; // the next page may have more of them
  const before = JSON.parse(kept(sessionStorage, place) || "null");
  history.scrollRestoration = "manual";
  if (before) {
    for (const fold of folds) fold.open = before.open.includes(name(fold));
    for (const table of tables) if (before.sorted[name(table)]) sort(table, ...before.sorted[name(table)]);
    scrollTo(0, before.top);
  }
  const again = () => {
    if (document.hidden || String(getSelection())) return setTimeout(again, 1000);
    const heads = tables.flatMap((table) => [...table.tHead.rows[0].cells]).filter((head) => head.ariaSort);
    const sorted = Object.fromEntries(heads.map((head) => [name(head.closest("table")), [head.cellIndex, head.ariaSort]]));
    const open = folds.filter((fold) => fold.open).map(name);
    kept(sessionStorage, place, JSON.stringify({ top: scrollY, open, sorted }));
    return location.reload();
  };
  setTimeout(again, 1000 * root.dataset.live);
}
