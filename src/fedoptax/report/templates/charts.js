// The page's data, its colours, and the charts that have no controls: partitions and profiles.
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const isNumber = (value) => typeof value === "number";

function format(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  return size === 0 || (size >= 5e-5 && size < 10) ? value.toFixed(4) : String(Number(value.toPrecision(4)));
}

// Plotly reads some tags and entities in a text as markup: a name from a run must not be read so.
const plain = (text) => text.replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function axis(title, more = {}) {
  return {
    title: { text: plain(title), font: { color: color("ink"), size: 12 }, standoff: 8 },
    gridcolor: color("faint"), linecolor: color("rule"), zeroline: false, automargin: true, ...more,
  };
}

function show(holder, traces, layout) {
  const label = { bgcolor: color("paper"), bordercolor: color("rule"), font: { color: color("ink"), size: 12 }, namelength: 40 };
  const common = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hoverlabel: label, bargap: 0.08,
    font: { family: getComputedStyle(document.body).fontFamily, color: color("soft"), size: 12 },
    margin: { l: 46, r: 8, t: 10, b: 40 }, modebar: { bgcolor: "rgba(0,0,0,0)", color: color("rule"), activecolor: color("soft") },
    width: document.documentElement.classList.contains("printing") ? Math.min(holder.clientWidth, 660) : undefined,
  };
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]] };
  Plotly.react(holder, traces, { ...common, ...layout }, config);
}

function drawPartition(holder, part) {
  const clients = part.sizes.map((_, i) => i), bins = part.bins.length > 0;
  const left = [0, bins ? 0.7 : 1], top = part.counts ? [0.76, 1] : [0, 1];
  const traces = [{
    type: "bar", x: clients, y: part.sizes, marker: { color: color("bars") },
    hovertemplate: "Client %{x}: %{y} examples<extra></extra>",
  }];
  const layout = {
    hovermode: "closest", height: part.counts ? 190 + Math.min(320, 18 * part.counts[0].length) : 260,
    xaxis: axis(part.title, { domain: left, anchor: part.counts ? "y2" : "y", showgrid: false }),
    yaxis: axis("Examples", { domain: top, nticks: 4 }),
  };
  if (part.counts) {
    const share = part.counts[0].map((_, k) => part.counts.map((row, i) => (row[k] ? (100 * row[k]) / part.sizes[i] : null)));
    traces.push({
      type: "heatmap", x: clients, y: share.map((_, k) => k), z: share, yaxis: "y2", xgap: 1, ygap: 1, zmin: 0, zmax: 100 * part.top,
      customdata: share.map((_, k) => part.counts.map((row) => row[k])),
      colorscale: [[0, color("heat-low")], [1, color("heat")]],
      colorbar: { orientation: "h", thickness: 8, len: 0.2, x: 0, xanchor: "left", y: 0, yanchor: "top", ypad: 24, ticksuffix: " %", tickvals: [0, 100 * part.top], outlinewidth: 0 },
      hovertemplate: "Client %{x}, class %{y}: %{customdata} (%{z:.0f} %)<extra></extra>",
    });
    layout.yaxis2 = axis("Class", { domain: [0, 0.72], autorange: "reversed", showgrid: false, dtick: Math.ceil(share.length / 20) });
  }
  if (bins) {
    traces.push({
      type: "bar", x: part.bins.map((_, i) => (part.edges[i] + part.edges[i + 1] - 1) / 2), y: part.bins, marker: { color: color("bars") },
      width: part.edges[1] - part.edges[0], xaxis: "x2", yaxis: "y3", customdata: part.bins.map((_, i) => `${part.edges[i]} to ${part.edges[i + 1] - 1}`),
      hovertemplate: "%{y} clients with %{customdata} examples<extra></extra>",
    });
    const span = part.edges.at(-1) - part.edges[0];
    layout.xaxis2 = axis("Examples per client", { domain: [0.78, 1], anchor: "y3", showgrid: false, dtick: Math.ceil(span / 5) });
    layout.yaxis3 = axis("Clients", { domain: [0.3, 1], anchor: "x2", nticks: 5 });
  }
  show(holder, traces, layout);
}

function drawProfile(holder, profile) {
  const traces = profile.lines.map((line) => ({
    x: line.x, y: line.y, name: plain(line.label), mode: profile.isGrid ? "lines+markers" : "markers",
    line: { color: color(`c${line.color}`), width: 2 }, marker: { symbol: line.marker, size: 8 }, hovertemplate: "%{y:.4~g}",
  }));
  const values = [...new Set(profile.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const ticks = profile.isGrid && values.length < 10 ? { tickvals: values, ticktext: values.map((value) => String(Number(value.toPrecision(3)))) } : {};
  show(holder, traces, {
    hovermode: "x unified", hoversort: profile.higher ? "value descending" : "value ascending", showlegend: traces.length > 1, height: 300,
    xaxis: axis(profile.name, { type: profile.isLog ? "log" : "linear", showgrid: false, unifiedhovertitle: { text: plain(`${profile.name} = %{x}`) }, ...ticks }),
    yaxis: axis(profile.metric, { nticks: 6 }),
  });
}
