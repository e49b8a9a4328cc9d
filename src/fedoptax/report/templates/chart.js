// The curves as SVG, drawn anew whenever a control, the legend or the width changes.
const state = { metric: null, x: "rounds", log: false, band: true, seeds: false, window: 1, zoom: false, hidden: new Set(), lit: null };
let view = null; // what was drawn last: series, scales and frame, for the reading line

function pathOf(xs, ys, sx, sy, positive) {
  let text = "", pen = false;
  xs.forEach((x, i) => {
    const y = ys[i];
    if (!isNumber(x) || !isNumber(y) || (positive && y <= 0)) {
      pen = false;
      return;
    }
    text += `${pen ? "L" : "M"}${round2(sx(x))},${bounded(sy(y))}`;
    pen = true;
  });
  return text;
}

// Far outside the frame a coordinate says nothing, and browsers draw huge ones badly.
const bounded = (value) => round2(Math.max(-1e4, Math.min(1e4, value)));

function bandOf(item, sx, sy, floor) {
  const upper = [], lower = [];
  item.mean.forEach((mean, i) => {
    if (!isNumber(mean) || !isNumber(item.std[i]) || !isNumber(item.x[i])) return;
    upper.push(`${round2(sx(item.x[i]))},${bounded(sy(Math.max(floor, mean + item.std[i])))}`);
    lower.push(`${round2(sx(item.x[i]))},${bounded(sy(Math.max(floor, mean - item.std[i])))}`);
  });
  return upper.length > 1 ? `M${upper.join("L")}L${lower.reverse().join("L")}Z` : "";
}

function drawCurve(item, sx, sy, floor) {
  const { group } = item;
  const curve = svg("g", { class: `curve c${group.color}${state.lit === item.place ? " lit" : ""}`, "data-label": group.label });
  const dash = group.dasharray || null;
  const several = item.seeds.length > 1;
  if (state.band && several) {
    const band = bandOf(item, sx, sy, floor);
    if (band) curve.append(svg("path", { class: "band", d: band }));
  }
  const broken = !item.mean.some(isNumber);
  if ((state.seeds && several) || broken) {
    item.seeds.forEach((seed) => {
      const path = pathOf(item.x, seed, sx, sy, state.log);
      if (path) curve.append(svg("path", { class: "seed", d: path, "stroke-dasharray": dash }));
    });
  }
  const path = pathOf(item.x, item.mean, sx, sy, state.log);
  if (path) curve.append(svg("path", { class: "mean", d: path, "stroke-dasharray": dash }));
  const shown = item.mean.flatMap((mean, i) =>
    isNumber(mean) && isNumber(item.x[i]) && !(state.log && mean <= 0) ? [i] : []);
  const every = Math.max(1, Math.round(shown.length / 8));
  for (let k = Math.min(shown.length - 1, (item.place * 3) % every); k >= 0 && k < shown.length; k += every) {
    const place = `translate(${round2(sx(item.x[shown[k]]))} ${bounded(sy(item.mean[shown[k]]))})`;
    curve.append(svg("path", { class: "marker", d: MARKERS[group.marker], transform: place }));
  }
  if (group.diverged && shown.length) {
    const last = shown[shown.length - 1];
    const place = `translate(${round2(sx(item.x[last]))} ${bounded(sy(item.mean[last]))})`;
    curve.append(svg("path", { class: "end", d: "M-5,-5L5,5M-5,5L5,-5", transform: place }));
  }
  return curve;
}

function drawAxes(frame, sx, sy, xLimits, yLimits, metric) {
  const layer = svg("g", { "aria-hidden": "true" });
  const rows = state.log ? logTicks(...yLimits) : ticks(...yLimits, frame.height < 320 ? 4 : 6);
  for (const { value, text } of rows) {
    const y = round2(sy(value));
    layer.append(
      svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y, y2: y }),
      svg("text", { x: frame.left - 8, y: y + 4, "text-anchor": "end" }, text));
  }
  for (const { value, text } of ticks(...xLimits, Math.max(2, Math.floor((frame.right - frame.left) / 95)), state.x === "rounds")) {
    const x = round2(sx(value));
    layer.append(
      svg("line", { class: "base", x1: x, x2: x, y1: frame.bottom, y2: frame.bottom + 4 }),
      svg("text", { x, y: frame.bottom + 18, "text-anchor": "middle" }, text));
  }
  const xTitle = state.x === "rounds" ? "Round" : "Sent by and to all clients (MB)";
  layer.append(
    svg("line", { class: "base", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }),
    svg("text", { class: "axis-title", x: frame.right, y: frame.bottom + 37, "text-anchor": "end" }, xTitle),
    svg("text", { class: "axis-title", x: 0, y: 12 }, metric.label + (state.log ? " (log scale)" : "")));
  return layer;
}

function draw() {
  const holder = byId("chart");
  const width = Math.max(260, Math.round(holder.clientWidth || 800));
  const beside = width > 600 ? Math.min(620, 24 * DATA.groups.length + 40) : 0; // as high as the legend next to it
  const height = Math.round(Math.max(beside, Math.min(430, Math.max(270, width * 0.58))));
  const metric = DATA.metrics.find((item) => item.name === state.metric);
  const all = prepare(state.metric, state.x, state.window);
  const series = all.filter((item) => !state.hidden.has(item.place));
  const yLimits = valueLimits(series, state);
  const xFound = extent(series.flatMap((item) => item.x));
  holder.replaceChildren();
  view = null;
  if (!yLimits || !xFound) {
    holder.append(html("p", { class: "note" }, "Nothing to draw: no algorithm with a value is shown."));
    return;
  }
  const widest = Math.max(...(state.log ? logTicks(...yLimits) : ticks(...yLimits, 6)).map((tick) => tick.text.length));
  const frame = { left: 14 + 7 * Math.max(2, widest), right: width - 10, top: 26, bottom: height - 44, width, height };
  const low = state.x === "rounds" ? Math.min(xFound[0], 1) : 0;
  const xLimits = [low, xFound[1] > low ? xFound[1] : low + 1];
  const sx = makeScale(xLimits, [frame.left + 4, frame.right - 4], false);
  const sy = makeScale(yLimits, [frame.bottom, frame.top], state.log);
  const floor = state.log ? yLimits[0] : -Infinity;
  const clip = svg("clipPath", { id: "frame" },
    svg("rect", { x: frame.left, y: frame.top - 4, width: frame.right - frame.left, height: frame.bottom - frame.top + 8 }));
  const curves = svg("g", { "clip-path": "url(#frame)" }, ...series.map((item) => drawCurve(item, sx, sy, floor)));
  const label = `${metric.label} of ${series.length} algorithms against ${state.x === "rounds" ? "rounds" : "megabytes sent"}`;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: state.lit === null ? null : "dimmed",
  }, svg("defs", {}, clip), drawAxes(frame, sx, sy, xLimits, yLimits, metric), curves);
  holder.setAttribute("aria-label", `${label}. Arrow keys read values.`);
  holder.append(picture);
  view = { series, frame, sx, sy, metric, picture, holder, xs: mergedX(series) };
  describe(series);
  fillLegend(all);
  fillValues(all, metric);
}

const mergedX = (series) => [...new Set(series.flatMap((item) => item.x.filter(isNumber)))].sort((a, b) => a - b);

// One line under the chart: what lines and bands are.
function describe(series) {
  const several = series.some((item) => item.seeds.length > 1);
  const parts = [];
  if (several) parts.push(state.band ? "Line: mean over seeds; band: ± 1 standard deviation." : "Line: mean over seeds.");
  if (several && state.seeds) parts.push("Thin lines: single seeds.");
  if (state.zoom) parts.push("Zoomed: the axis fits the second half of the curves.");
  if (state.window > 1) parts.push(`Smoothed: centred mean of ${state.window} points.`);
  if (series.some((item) => item.group.diverged)) parts.push("A cross ends a curve of which a seed diverged; such curves do not set the axis.");
  byId("chart-note").textContent = parts.join(" ");
}

// The last value of every curve, beside its name.
function fillLegend(all) {
  const cells = byId("legend").querySelectorAll(".last");
  cells.forEach((cell, place) => {
    const item = all.find((other) => other.place === place);
    if (DATA.groups[place].diverged) cell.textContent = "diverged";
    else cell.textContent = item ? formatNumber(item.mean.findLast(isNumber)) : "–";
  });
}

// The table that says the same as the chart, at about ten rounds.
function fillValues(all, metric) {
  const rounds = [...new Set(all.flatMap((item) => item.rounds))].sort((a, b) => a - b);
  const wanted = Math.min(10, rounds.length);
  const chosen = [...new Set(Array.from({ length: wanted }, (_, i) =>
    rounds[Math.round((i * (rounds.length - 1)) / Math.max(1, wanted - 1))]))];
  const head = html("tr", {}, html("th", { scope: "col" }, `${metric.label} at round`),
    ...chosen.map((round) => html("th", { scope: "col" }, formatCount(round))));
  const rows = all.map((item) => html("tr", {}, html("th", { scope: "row" }, item.group.label),
    ...chosen.map((round) => html("td", {}, formatNumber(item.mean[item.rounds.indexOf(round)])))));
  byId("values-table").replaceChildren(html("thead", {}, head), html("tbody", {}, ...rows));
}
