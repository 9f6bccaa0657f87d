"use strict";
(() => {
  const root = document.documentElement;
  const button = document.querySelector("button.theme");
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : window.matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
  // A report opened from a file or inside a notebook may have no storage; then the choice lasts as long as the page.
  try { const kept = localStorage.getItem("synflow-theme"); if (kept) root.dataset.theme = kept; } catch { /* none */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("synflow-theme", root.dataset.theme); } catch { /* none */ }
    label();
  });
  label();
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const order = isNaN(x) || isNaN(y) ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    }));
  }
})();
