// The curves with their controls and table.
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const isNumber = (value) => typeof value === "number";
const format = (value) => (isNumber(value) ? value.toPrecision(4) : "–");
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
// Plotly reads some tags and entities in a text as markup: a name from a run must not be read so.
const plain = (text) => text.replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);

const state = { metric: DATA.metrics[0], axis: DATA.axes[0], log: false, spread: byId("spread")?.checked, seeds: false };

function band(curve, x, style) {
  const places = [...curve.mean.keys()];
  const known = places.filter((i) => isNumber(curve.mean[i]) && isNumber(curve.std[i]) && isNumber(x[i]));
  const around = [...known, ...[...known].reverse()];
  const edge = (i, place) => curve.mean[i] + (place < known.length ? curve.std[i] : -curve.std[i]);
  const floor = state.log ? Math.min(...curve.mean.filter((mean) => mean > 0)) / 10 : -Infinity;
  return {
    x: around.map((i) => x[i]), y: around.map((i, place) => Math.max(floor, edge(i, place))),
    mode: "none", fill: "toself", fillcolor: `${style}24`, hoverinfo: "skip",
  };
}

function tracesOf(curve) {
  const group = DATA.groups[curve.group], style = color(`c${group.color}`), x = curve.along[state.axis.name];
  const traces = [], hasSpread = curve.std.some(isNumber);
  if (state.spread && hasSpread) traces.push(band(curve, x, style));
  if (state.seeds || !curve.mean.some(isNumber)) {
    const line = { color: style, width: 1, dash: group.dash };
    for (const y of curve.seeds) traces.push({ x, y, mode: "lines", line, opacity: 0.45, hoverinfo: "skip" });
  }
  traces.push({
    x, y: curve.mean, customdata: curve.std, name: plain(group.label), mode: "lines+markers", showlegend: true,
    line: { color: style, width: 2, dash: group.dash },
    marker: { color: style, symbol: group.marker, size: 8, maxdisplayed: 8, line: { color: color("paper"), width: 1 } },
    hovertemplate: hasSpread ? "%{y:.4~g} ± %{customdata:.2~g}" : "%{y:.4~g}",
  });
  const end = curve.mean.findLastIndex(isNumber);
  if (group.diverged && end >= 0) {
    const marker = { symbol: "x-thin", size: 11, line: { color: style, width: 2.5 } };
    traces.push({ x: [x[end]], y: [curve.mean[end]], mode: "markers", marker, hoverinfo: "skip" });
  }
  const legendgroup = String(curve.group); // hidden as a whole, and still hidden when it is drawn again
  const visible = byId("chart").data?.find((old) => old.legendgroup === legendgroup)?.visible ?? true;
  return traces.map((trace) => ({ legendgroup, legendrank: curve.group, showlegend: false, visible, ...trace }));
}

// Diverged runs do not set the value axis while there are others.
function valueRange(curves) {
  const diverged = (curve) => DATA.groups[curve.group].diverged;
  const limits = state.log ? state.metric.logLimits : state.metric.limits;
  if (!limits || !curves.some(diverged) || curves.every(diverged)) return {};
  return { range: state.log ? limits.map(Math.log10) : limits };
}

function axis(title, more) {
  const name = { text: plain(title), font: { color: color("ink"), size: 12 }, standoff: 8 };
  return { title: name, automargin: true, gridcolor: color("faint"), linecolor: color("rule"), zeroline: false, ...more };
}

function drawCurves() {
  const { metric } = state, none = "rgba(0,0,0,0)", chart = byId("chart");
  const isWide = chart.clientWidth >= 700 && DATA.groups.every((group) => group.label.length <= 34);
  const isDashed = (curve) => DATA.groups[curve.group].dash !== "solid"; // drawn last: gaps show what is below
  const curves = [...metric.curves].sort((a, b) => isDashed(a) - isDashed(b));
  const layout = {
    xaxis: axis(state.axis.title, { showgrid: false, automargin: false, tickangle: 0, unifiedhovertitle: { text: state.axis.hover },
      dtick: state.axis.name === "round" && curves.every((curve) => curve.along.round.at(-1) < 10) ? 1 : null }),
    yaxis: axis(metric.label + (state.log ? " (log scale)" : ""), {
      nticks: 7, type: state.log ? "log" : "linear", ...valueRange(curves),
    }),
    hovermode: "x unified", hoversort: metric.higher ? "value descending" : "value ascending",
    hoverlabel: { bgcolor: color("paper"), bordercolor: color("rule"), font: { color: color("ink") } },
    font: { family: getComputedStyle(document.body).fontFamily, color: color("soft"), size: 12 },
    modebar: { bgcolor: none, color: color("soft"), activecolor: color("ink") },
    paper_bgcolor: color("paper"), plot_bgcolor: none, margin: { l: 46, r: 8, t: 10, b: 52 },
    legend: { uirevision: false, ...(isWide ? { y: 0.94 } : { orientation: "h" }) },
    height: Math.min(620, Math.max(430, 26 * DATA.groups.length + 60)),
    uirevision: [metric.name, state.axis.name, state.log].join(), // the reader's zoom stays while these do
  };
  const modeBarButtons = [["zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]];
  Plotly.react(chart, curves.flatMap(tracesOf), layout, { responsive: true, displaylogo: false, modeBarButtons });
  chart.setAttribute("aria-label", `${metric.label} of ${curves.length} algorithms; the table below has the values`);
  fillValues();
}

// The values of the curves at about ten rounds.
function fillValues() {
  const rounds = [...new Set(state.metric.curves.flatMap((curve) => curve.along.round))].sort((a, b) => a - b);
  const step = Math.max(1, (rounds.length - 1) / 9);
  const places = Array.from({ length: Math.min(10, rounds.length) }, (_, i) => Math.round(i * step));
  const chosen = places.map((place) => rounds[place]);
  const row = (first, texts, tag) => {
    const line = document.createElement("tr");
    const cell = (text, name) => Object.assign(document.createElement(name), { textContent: text });
    line.append(cell(first, "th"), ...texts.map((text) => cell(text, tag)));
    return line;
  };
  // the last value up to a round, as curves are evaluated at different ones
  const at = ({ along, mean }, round) => (along.round.at(-1) < round ? null : mean[along.round.findLastIndex((x) => x <= round)]);
  const body = state.metric.curves.map((curve) =>
    row(DATA.groups[curve.group].label, chosen.map((round) => format(at(curve, round))), "td"));
  byId("values").tHead.replaceChildren(row(`${state.metric.label} by round`, chosen.map(String), "th"));
  byId("values").tBodies[0].replaceChildren(...body);
}

function connectControls() {
  const set = (name, value) => {
    state[name] = value;
    drawCurves();
  };
  byId("metric").addEventListener("change", (event) => set("metric", DATA.metrics[event.target.value]));
  byId("axis").addEventListener("change", (event) => set("axis", DATA.axes[event.target.value]));
  for (const name of ["log", "spread", "seeds"]) {
    byId(name)?.addEventListener("change", (event) => set(name, event.target.checked));
  }
}
