// The reading line: the values of all shown algorithms at one place of the x axis, best first.
let readingAt = null;

function readings(x) {
  const found = view.series.map((item) => {
    const usable = item.mean.map((mean, i) => (isNumber(mean) && isNumber(item.x[i]) ? i : -1)).filter((i) => i >= 0);
    const place = lastAtOrBelow(usable.map((i) => item.x[i]), x * (1 + 1e-9));
    if (place < 0) return { item, mean: null };
    const i = usable[place];
    return { item, i, mean: item.mean[i], std: item.std[i], ended: place === usable.length - 1 && item.x[i] < x * (1 - 1e-6) };
  });
  const sign = view.metric.higher ? -1 : 1;
  const known = found.filter((reading) => isNumber(reading.mean));
  return known.sort((a, b) => sign * (a.mean - b.mean)).concat(found.filter((reading) => !isNumber(reading.mean)));
}

const readingText = (reading) => formatSpread(reading.mean, reading.std);

function clearReading() {
  readingAt = null;
  if (!view) return;
  view.holder.querySelectorAll(".tip, .reading").forEach((node) => node.remove());
}

function showReading(place, speak) {
  if (!view) return;
  clearReading();
  readingAt = Math.max(0, Math.min(view.xs.length - 1, place));
  const x = view.xs[readingAt];
  const at = view.sx(x), { frame } = view;
  const layer = svg("g", { class: "reading", "aria-hidden": "true" },
    svg("line", { class: "cursor", x1: at, x2: at, y1: frame.top, y2: frame.bottom }));
  const found = readings(x);
  for (const reading of found) {
    if (!isNumber(reading.mean) || reading.ended) continue;
    const y = view.sy(reading.mean);
    if (!isNumber(y) || y < frame.top - 4 || y > frame.bottom + 4) continue;
    layer.append(svg("circle", { class: `dot c${reading.item.group.color}`, cx: at, cy: y, r: 4 }));
  }
  view.picture.append(layer);
  const heading = state.x === "rounds" ? `Round ${formatCount(x)}` : `${formatMegabytes(x)} sent`;
  view.holder.append(tipAt(at, heading, found));
  if (speak) {
    const words = found.slice(0, 6).map((reading) => `${reading.item.group.label} ${readingText(reading)}`);
    byId("live").textContent = `${heading}: ${words.join("; ")}`;
  }
}

function tipAt(at, heading, found) {
  const rows = found.map((reading) => {
    const mark = html("span", { class: "swatch" }, swatch(reading.item.group));
    const name = html("span", { class: "name" }, mark, html("span", { class: "cut" }, reading.item.group.label));
    const ended = reading.ended ? ` at round ${formatCount(reading.item.rounds[reading.i])}` : "";
    return html("tr", { class: ended ? "ended" : null }, html("th", {}, name), html("td", {}, readingText(reading) + ended));
  });
  const tip = html("div", { class: "tip", "aria-hidden": "true" }, html("h3", {}, heading), html("table", {}, html("tbody", {}, ...rows)));
  const share = view.holder.clientWidth / view.frame.width || 1;
  if (at > view.frame.width / 2) tip.style.right = `${view.holder.clientWidth - at * share + 12}px`;
  else tip.style.left = `${at * share + 12}px`;
  tip.style.top = `${view.frame.top * share}px`;
  return tip;
}

function nearestPlace(x) {
  const below = lastAtOrBelow(view.xs, x);
  if (below < 0) return 0;
  const next = Math.min(below + 1, view.xs.length - 1);
  return x - view.xs[below] <= view.xs[next] - x ? below : next;
}

function connectReading(holder) {
  holder.addEventListener("pointermove", (event) => {
    if (!view) return;
    const box = view.picture.getBoundingClientRect();
    const x = view.sx.invert(((event.clientX - box.left) / box.width) * view.frame.width);
    showReading(nearestPlace(x), false);
  });
  holder.addEventListener("pointerleave", clearReading);
  holder.addEventListener("blur", clearReading);
  holder.addEventListener("keydown", (event) => {
    if (!view) return;
    const last = view.xs.length - 1, far = Math.max(1, Math.round(last / 10));
    const now = readingAt === null ? last : readingAt;
    const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, PageDown: now - far, PageUp: now + far, Home: 0, End: last };
    if (event.key === "Escape") clearReading();
    else if (event.key in moves) showReading(readingAt === null && event.key.startsWith("Arrow") ? last : moves[event.key], true);
    else return;
    event.preventDefault();
  });
}
