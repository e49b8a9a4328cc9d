// Sortable tables, and what draws everything: at the start, and when light turns to dark.
function sortKey(cell) {
  if (cell.dataset.key === "") return null;
  const value = cell.dataset.key === "inf" ? Infinity : Number(cell.dataset.key);
  return Number.isNaN(value) ? cell.dataset.key : value;
}

function compare(a, b) {
  if (isNumber(a) && isNumber(b)) return a === b ? 0 : a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortTable(table, heads, column) {
  const isDescending = heads[column].getAttribute("aria-sort") === "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[column].setAttribute("aria-sort", isDescending ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: sortKey(row.cells[column]) }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null); // missing values stay last
    return isDescending ? compare(b.key, a.key) : compare(a.key, b.key);
  });
  table.tBodies[0].append(...rows.map(({ row }) => row));
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    button.addEventListener("click", () => sortTable(table, heads, column));
    head.append(button);
  });
}

document.querySelectorAll("table.sortable").forEach(makeSortable);
if (state.metric) {
  connectControls();
  drawCurves();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCurves);
}
document.documentElement.dataset.ready = "true";
