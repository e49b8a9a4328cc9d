// The page's data, and the few helpers that everything else is made of.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children); // strings become text nodes: no text of the data is ever parsed as HTML
  return node;
}

const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const round2 = (value) => Math.round(value * 100) / 100;

// How many decimals a value is written with; null for very large and very small ones.
function decimalsOf(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 5e-5 || size >= 1e6)) return null;
  return size < 10 ? 4 : Math.max(0, 3 - Math.floor(Math.log10(size)));
}

function formatNumber(value, decimals = isNumber(value) ? decimalsOf(value) : null) {
  if (!isNumber(value)) return "–";
  return decimals === null ? value.toExponential(3).replace(/\.?0+e/, "e") : value.toFixed(decimals);
}

function formatSpread(mean, std) {
  if (!isNumber(mean) || !isNumber(std)) return formatNumber(mean);
  const decimals = decimalsOf(mean);
  return `${formatNumber(mean)} ± ${decimals === null ? formatNumber(std) : formatNumber(std, decimals)}`;
}

function formatMegabytes(value) {
  if (!isNumber(value)) return "–";
  if (value >= 1000) return `${(value / 1000).toFixed(2)} GB`;
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} MB`;
}

const formatCount = (value) => value.toLocaleString("en-US");

// Marker outlines around (0, 0), of about the same area.
const MARKERS = {
  circle: "M-3.6,0a3.6,3.6 0 1,0 7.2,0a3.6,3.6 0 1,0 -7.2,0Z",
  square: "M-3.3,-3.3H3.3V3.3H-3.3Z",
  triangle: "M0,-4.4L4.3,3.4H-4.3Z",
  diamond: "M0,-4.7L4.7,0L0,4.7L-4.7,0Z",
  down: "M0,4.4L4.3,-3.4H-4.3Z",
  plus: "M-1.5,-4.4H1.5V-1.5H4.4V1.5H1.5V4.4H-1.5V1.5H-4.4V-1.5H-1.5Z",
  cross: "M-4.3,-2.3L-2.3,-4.3L0,-2L2.3,-4.3L4.3,-2.3L2,0L4.3,2.3L2.3,4.3L0,2L-2.3,4.3L-4.3,2.3L-2,0Z",
};

function swatch(look) {
  return svg("svg", { viewBox: "0 0 34 12", class: `c${look.color}`, "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 33, y1: 6, y2: 6, class: "mean", "stroke-dasharray": look.dasharray || null }),
    svg("path", { d: MARKERS[look.marker], transform: "translate(17 6)", class: "marker" }));
}
