// Puts the page together.
document.querySelectorAll(".swatch[data-marker]").forEach((holder) => {
  const color = [...holder.classList].find((name) => /^c\d+$/.test(name)).slice(1);
  holder.append(swatch({ color, marker: holder.dataset.marker, dasharray: holder.dataset.dash }));
});
document.querySelectorAll("table.sortable").forEach(makeSortable);
drawPartitions();

if (DATA.metrics.length) {
  state.metric = DATA.metrics[0].name;
  buildControls(byId("controls"));
  buildLegend(byId("legend"), byId("show-all"));
  draw();
  connectReading(byId("chart"));
} else {
  byId("chart").append(html("p", { class: "note" }, "No round was recorded: there is no curve to draw."));
}

let drawnAt = byId("chart").clientWidth;
window.addEventListener("resize", () => {
  const width = byId("chart").clientWidth;
  if (Math.abs(width - drawnAt) < 2) return;
  drawnAt = width;
  if (DATA.metrics.length) draw();
  drawPartitions();
});
document.documentElement.dataset.ready = "true";
