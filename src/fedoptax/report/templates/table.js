// Tables that sort by a click on a heading; what is missing stays last.

function sortKey(cell) {
  const text = cell.dataset.key ?? cell.textContent;
  if (text === "") return null;
  if (text === "inf") return Infinity;
  const value = Number(text);
  return Number.isNaN(value) ? text : value;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a === b ? 0 : a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortRows(body, column, descending) {
  const rows = [...body.rows].map((row) => ({ row, key: sortKey(row.cells[column]) }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    return descending ? compare(b.key, a.key) : compare(a.key, b.key);
  });
  body.append(...rows.map(({ row }) => row));
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = html("button", { type: "button" }, ...head.childNodes);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortRows(table.tBodies[0], column, descending);
    });
    head.append(button);
  });
}
