"use strict";
// Numbers to places and to text, and elements from values. Text is only ever set as text.

const canvas = document.getElementById("canvas");

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
const html = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) =>
  fill(document.createElementNS(canvas.namespaceURI, name), attributes, children);

// A map from [low, high] to [from, to], with ticks.
function makeScale(low, high, from, to, log) {
  const bend = log ? Math.log10 : (value) => value;
  const span = bend(high) - bend(low) || 1;
  return {
    place: (value) => from + ((bend(value) - bend(low)) / span) * (to - from),
    ticks: (count) => (log ? logTicks(low, high) : evenTicks(low, high, count)),
  };
}

function evenTicks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found;
}

function logTicks(low, high) {
  const powers = [];
  for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++) powers.push(k);
  const inside = (factors) =>
    powers.flatMap((k) => factors.map((f) => f * 10 ** k)).filter((v) => v >= low * 0.999 && v <= high * 1.001);
  const [sparse, dense] = [inside([1]), inside([1, 2, 5])];
  if (sparse.length < 3) return dense;
  const every = Math.ceil(sparse.length / 7);
  return sparse.filter((_, i) => i % every === 0);
}

// Where the values of a chart lie, with some room; logarithmic where they may span much, and do.
function domain(values, { percent, wide }) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const log = wide && low > 0 && high / low > 15;
  if (log) return { low: low / 1.2, high: high * 1.2, log };
  const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const room = high - low > size / 50 ? (high - low) * 0.06 : size / 10; // what hardly changes looks flat
  [low, high] = [low < 0 ? low - room : Math.max(0, low - room), high + room];
  return { low, high: percent ? Math.min(1, high) : high, log };
}

const written = (value, percent) => (percent ? `${(100 * value).toFixed(2)}%` : String(+value.toPrecision(4)));

function tickText(value, percent) {
  if (percent) return `${+(100 * value).toPrecision(4)}%`;
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
  return String(+value.toPrecision(4));
}

// Marks of eight shapes, so that colour is not all that tells methods apart.
const SHAPES = [
  (r) => `M${-r},0A${r},${r} 0 1 1 ${r},0A${r},${r} 0 1 1 ${-r},0Z`,
  (r) => `M${-r},${-r}H${r}V${r}H${-r}Z`,
  (r) => `M0,${-1.25 * r}L${1.2 * r},${r}H${-1.2 * r}Z`,
  (r) => `M0,${-1.4 * r}L${1.4 * r},0L0,${1.4 * r}L${-1.4 * r},0Z`,
  (r) => `M0,${1.25 * r}L${1.2 * r},${-r}H${-1.2 * r}Z`,
  (r) => `M${-r},${-r}L${r},${r}M${-r},${r}L${r},${-r}`,
  (r) => `M${-1.3 * r},0H${1.3 * r}M0,${-1.3 * r}V${1.3 * r}`,
  (r) => `M${-r},${-r}L${r},${-r}L${-r},${r}L${r},${r}Z`,
];
const DASHES = ["none", "7 3", "2 3", "9 3 2 3", "13 4", "4 6"];
const colour = (method) => `var(--c${method % 8})`;
const shape = (method, size) => SHAPES[(method + Math.floor(method / 8)) % 8](size);
const dash = (rho) => (rho === null ? "none" : DASHES[rho % DASHES.length]);

function swatch(method, rho = null) {
  const inner = [svg("line", { x1: -7, x2: 7, class: "line", "stroke-dasharray": dash(rho) })];
  if (method !== null) inner.push(svg("path", { d: shape(method, 3.5), class: "mark" }));
  const stroke = method === null ? "currentColor" : colour(method);
  const group = svg("g", { transform: "translate(7 7)", stroke }, ...inner);
  return svg("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, group);
}
