// Who holds which data: sizes and classes of the first clients, and a histogram of all sizes.

function bars(values, x, width, y, height, most) {
  return values.map((value, i) => {
    const tall = (value / Math.max(1, most)) * height;
    return svg("rect", { class: "bar", x: round2(x(i)), y: round2(y + height - tall), width: round2(width(i)), height: round2(tall) });
  });
}

function sideTicks(most, y, height, left, right, wanted) {
  return ticks(0, Math.max(1, most), wanted, true).flatMap(({ value }) => {
    const at = round2(y + height - (value / Math.max(1, most)) * height);
    return [svg("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }),
      svg("text", { x: left - 7, y: at + 4, "text-anchor": "end" }, formatCount(value))];
  });
}

function clientPicture(part, total, readout) {
  const shown = part.sizes.length, classes = part.counts ? part.counts[0].length : 0;
  const row = classes ? Math.max(6, Math.min(17, 260 / classes)) : 0;
  const width = Math.max(280, total), left = 46, right = width - 2, top = 24, tall = classes ? 66 : 150;
  const heatTop = top + tall + 10, bottom = classes ? heatTop + row * classes : top + tall;
  const cell = (right - left) / shown, gap = cell > 6 ? 1 : cell > 3 ? 0.5 : 0;
  const most = Math.max(...part.sizes);
  const layer = svg("g", {}, svg("text", { class: "axis-title", x: 0, y: 12 }, "Examples"),
    ...sideTicks(most, top, tall, left, right, classes ? 2 : 4),
    ...bars(part.sizes, (i) => left + i * cell, () => Math.max(0.5, cell - gap), top, tall, most));
  if (classes) {
    layer.append(svg("rect", { class: "frame", x: left, y: heatTop, width: right - left, height: row * classes }));
    part.counts.forEach((counts, i) => counts.forEach((value, k) => {
      if (!value) return;
      const share = value / Math.max(1, part.sizes[i]) / part.top;
      layer.append(svg("rect", { class: "heat", x: round2(left + i * cell), y: round2(heatTop + k * row), width: round2(Math.max(0.5, cell - gap)), height: round2(row - (row > 8 ? 1 : 0)), "fill-opacity": round2(Math.min(1, 0.07 + 0.93 * share)) }));
    }));
    const every = Math.ceil(14 / row);
    for (let k = 0; k < classes; k += every) {
      layer.append(svg("text", { x: left - 7, y: round2(heatTop + (k + 0.5) * row + 4), "text-anchor": "end" }, String(k)));
    }
    layer.append(svg("text", { class: "axis-title", transform: `translate(10 ${heatTop + (row * classes) / 2}) rotate(-90)`, "text-anchor": "middle" }, "Class"));
  }
  for (const { value } of ticks(0, Math.max(1, shown - 1), width / 70, true)) {
    if (value >= shown) continue;
    layer.append(svg("text", { x: round2(left + (value + 0.5) * cell), y: bottom + 16, "text-anchor": "middle" }, formatCount(value)));
  }
  const title = shown < part.clients ? `Client (the first ${shown} of ${formatCount(part.clients)})` : "Client";
  layer.append(svg("text", { class: "axis-title", x: right, y: bottom + 34, "text-anchor": "end" }, title));
  if (classes) layer.append(heatKey(left, bottom + 26, part.top));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${bottom + 42}`, "aria-hidden": "true" }, layer);
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const client = Math.floor(((event.clientX - box.left) * (width / box.width) - left) / cell);
    const kind = Math.floor(((event.clientY - box.top) * (width / box.width) - heatTop) / row);
    if (client < 0 || client >= shown) return;
    const size = part.sizes[client];
    const inClass = classes && kind >= 0 && kind < classes
      ? `, class ${kind}: ${formatCount(part.counts[client][kind])} (${Math.round((100 * part.counts[client][kind]) / Math.max(1, size))} %)` : "";
    readout.textContent = `Client ${client}: ${formatCount(size)} examples${inClass}`;
  });
  return picture;
}

function heatKey(x, y, top) {
  const key = svg("g", {});
  for (let i = 0; i <= 10; i += 1) {
    key.append(svg("rect", { class: "heat", x: x + i * 9, y, width: 8, height: 9, "fill-opacity": round2(0.07 + 0.093 * i) }));
  }
  key.append(svg("text", { x: x + 106, y: y + 9 }, `0 to ${Math.round(100 * top)} % of the client`));
  return key;
}

function sizePicture(part, total) {
  const width = Math.max(220, total), left = 46, right = width - 14, top = 24, tall = 150, bottom = top + tall;
  const low = part.edges[0] - 0.5, span = part.edges[part.edges.length - 1] - part.edges[0];
  const x = (value) => left + ((value - low) / span) * (right - left);
  const most = Math.max(...part.bins);
  const wide = (right - left) / part.bins.length;
  const layer = svg("g", {}, svg("text", { class: "axis-title", x: 0, y: 12 }, "Clients"),
    ...sideTicks(most, top, tall, left, right, 4),
    ...bars(part.bins, (i) => x(part.edges[i] - 0.5) + 0.5, () => Math.max(1, wide - 1), top, tall, most),
    svg("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }));
  for (const { value } of ticks(low, low + span, Math.max(2, width / 80), true)) {
    layer.append(svg("text", { x: round2(x(value)), y: bottom + 16, "text-anchor": "middle" }, formatCount(value)));
  }
  layer.append(svg("text", { class: "axis-title", x: right, y: bottom + 34, "text-anchor": "end" }, "Examples of a client"));
  return svg("svg", { viewBox: `0 0 ${width} ${bottom + 42}`, "aria-hidden": "true" }, layer);
}

function drawPartitions() {
  document.querySelectorAll(".partition-plots").forEach((holder) => {
    const part = DATA.partitions[Number(holder.dataset.place)];
    const columns = getComputedStyle(holder).gridTemplateColumns.split(" ").map(parseFloat);
    const [first, second] = columns.length > 1 ? columns : [columns[0], columns[0]];
    const readout = holder.parentElement.querySelector(".readout");
    const pictures = [clientPicture(part, first || 700, readout)];
    if (part.clients > 2) pictures.push(sizePicture(part, second || 300));
    holder.replaceChildren(...pictures);
  });
}
