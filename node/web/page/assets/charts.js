// Pictures from numbers. Every one has a text that says what it shows.

import { make, svg } from "./draw.js";
import { short } from "./words.js";

const scale = (from, to, low, high) => (value) => (to === from ? (low + high) / 2 : low + ((value - from) / (to - from)) * (high - low));

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// Round numbers that cover a range, about `wanted` of them.
export function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

function frame(width, height, label, box, xs, ys, xText, yText) {
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  for (const y of ys.values) {
    root.append(svg("line", { class: y === 0 ? "zero" : "rule", x1: box.left, x2: box.right, y1: ys.at(y), y2: ys.at(y) }));
    root.append(svg("text", { x: box.left - 8, y: ys.at(y) + 4, "text-anchor": "end" }, yText(y)));
  }
  for (const x of xs.values) {
    const side = xs.at(x) > box.right - 30 ? "end" : xs.at(x) < box.left + 20 ? "start" : "middle";
    root.append(svg("text", { x: xs.at(x), y: height - 4, "text-anchor": side }, xText(x)));
  }
  return root;
}

// lines: [{class, points: [[x, y]], dots}]; a line with dots is drawn as dots.
export function lines(width, height, label, { series, xRange, yRange, xText, yText, goal, area, band = [], left = 44 }) {
  const box = { left, right: width - 6, top: 10, bottom: height - 26 };
  const x = scale(xRange[0], xRange[1], box.left, box.right);
  const y = scale(yRange[0], yRange[1], box.bottom, box.top);
  const xs = { values: ticks(xRange[0], xRange[1], Math.max(width / 110, 2)), at: x };
  const ys = { values: ticks(yRange[0], yRange[1], height > 200 ? 5 : 3), at: y };
  const root = frame(width, height, label, box, xs, ys, xText, yText);
  if (goal !== null && goal !== undefined && goal <= yRange[1]) {
    root.append(svg("line", { class: "goal", x1: box.left, x2: box.right, y1: y(goal), y2: y(goal) }));
    root.append(svg("text", { x: box.left + 6, y: y(goal) - 6 }, `goal ${goal}`));
  }
  if (band.length > 1) {
    const there = path(band.map(([a, , high]) => [x(a), Math.max(y(high), box.top)]));
    const back = path(band.toReversed().map(([a, low]) => [x(a), Math.min(y(low), box.bottom)]));
    root.append(svg("path", { class: "area", d: `${there}${back.replace("M", "L")}Z` }));
  }
  for (const one of series) {
    const points = one.points.map(([a, b]) => [x(a), y(b)]);
    if (area && points.length > 1) root.append(svg("path", { class: "area", d: `${path(points)}L${points.at(-1)[0].toFixed(1)} ${box.bottom}L${points[0][0].toFixed(1)} ${box.bottom}Z` }));
    if (one.dots || points.length === 1) root.append(...points.map(([a, b]) => svg("circle", { class: "dot", cx: a.toFixed(1), cy: b.toFixed(1), r: 2 })));
    else if (points.length) root.append(svg("path", { class: one.class, d: path(points) }));
  }
  return { root, x, box };
}

// A line that follows the pointer; `told` hears the x under it, or null.
export function follow(chart, xRange, told) {
  const { root, box } = chart;
  const line = svg("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
  root.append(line);
  root.addEventListener("pointermove", (event) => {
    const area = root.getBoundingClientRect();
    const px = Math.min(Math.max(event.clientX - area.left, box.left), box.right);
    line.setAttribute("x1", px);
    line.setAttribute("x2", px);
    line.setAttribute("visibility", "visible");
    told(xRange[0] + ((px - box.left) / (box.right - box.left)) * (xRange[1] - xRange[0]));
  });
  root.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    told(null);
  });
}

// Rows of dots: how many seconds after the first each member held a policy.
export function strips(width, label, rows, most) {
  const height = rows.length * 26 + 30;
  const box = { left: 64, right: width - 74, bottom: height - 26 };
  const x = scale(0, most, box.left, box.right);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  for (const value of ticks(0, most, width / 130)) {
    root.append(svg("line", { class: "rule", x1: x(value), x2: x(value), y1: 0, y2: box.bottom }));
    root.append(svg("text", { x: x(value), y: height - 6, "text-anchor": "middle" }, `${value} s`));
  }
  rows.forEach((row, i) => {
    const y = 14 + 26 * i;
    root.append(svg("text", { x: 0, y: y + 4 }, `step ${row.step}`));
    root.append(svg("line", { class: "rule", x1: box.left, x2: box.right, y1: y, y2: y }));
    const last = row.seconds.at(-1) ?? 0;
    if (last > 0) root.append(svg("line", { class: "main", x1: x(0), x2: x(last), y1: y, y2: y, opacity: 0.35 }));
    root.append(...row.seconds.map((value) => svg("circle", { class: "node", cx: x(value).toFixed(1), cy: y, r: 4 })));
    root.append(svg("text", { x: width, y: y + 4, "text-anchor": "end" }, `${row.held} of ${row.live}`));
  });
  return root;
}

const GOLDEN = Math.PI * (3 - Math.sqrt(5));

// The trainer in the middle, validators around it, workers outside; a large swarm fills the disc evenly.
function places(members) {
  const inner = members.filter((one) => one.role === "trainer");
  const middle = members.filter((one) => one.role === "validator");
  const outer = members.filter((one) => one.role !== "trainer" && one.role !== "validator");
  const ring = (list, radius, turn) => list.map((one, i) => [one, radius * Math.cos(turn + (2 * Math.PI * i) / list.length), radius * Math.sin(turn + (2 * Math.PI * i) / list.length)]);
  const core = [...ring(inner, inner.length > 1 ? 14 : 0, 0), ...ring(middle, middle.length ? 52 : 0, -Math.PI / 2)];
  if (outer.length <= 24) return [...core, ...ring(outer, 112, -Math.PI / 2 + 0.26)];
  const from = middle.length || inner.length ? 0.27 : 0;
  return [...core, ...outer.map((one, i) => {
    const radius = 140 * Math.sqrt(from + (1 - from) * ((i + 0.5) / outer.length));
    return [one, radius * Math.cos(i * GOLDEN), radius * Math.sin(i * GOLDEN)];
  })];
}

function mark(one, x, y, r) {
  const kind = `node ${one.state}`;
  const title = svg("title", {}, `${one.role || "member"} ${short(one.address)}, ${one.state}${one.me ? ", this node" : ""}`);
  if (one.role === "trainer") return svg("rect", { class: kind, x: x - r, y: y - r, width: 2 * r, height: 2 * r, rx: 2 }, title);
  if (one.role === "validator") return svg("path", { class: kind, d: `M${x} ${y - 1.2 * r}L${x + 1.1 * r} ${y + 0.8 * r}L${x - 1.1 * r} ${y + 0.8 * r}Z` }, title);
  return svg("circle", { class: kind, cx: x.toFixed(1), cy: y.toFixed(1), r }, title);
}

export function swarm(members, label) {
  const root = svg("svg", { viewBox: "-150 -150 300 300", role: "img", "aria-label": label });
  const placed = places(members);
  const r = members.length > 400 ? 2.4 : members.length > 80 ? 4 : members.length > 24 ? 5.5 : 9;
  const me = placed.find(([one]) => one.me);
  if (me) root.append(...placed.filter(([one]) => one.connected && !one.me).map(([, x, y]) => svg("line", { class: "wire", x1: me[1].toFixed(1), y1: me[2].toFixed(1), x2: x.toFixed(1), y2: y.toFixed(1) })));
  root.append(...placed.map(([one, x, y]) => mark(one, x, y, one.role === "worker" || !one.role ? r : Math.max(r, 7))));
  if (me) root.append(svg("circle", { class: "own", cx: me[1].toFixed(1), cy: me[2].toFixed(1), r: Math.max(r, 7) + 5 }));
  return root;
}

export function table(heads, rows, label) {
  const head = make("tr", {}, heads.map(([text, kind]) => make("th", { scope: "col", class: kind ?? null }, text)));
  const body = rows.map(({ cells, kind }) => make("tr", { class: kind ?? null }, cells.map((cell, i) => make("td", { class: heads[i][1] ?? null }, cell))));
  return make("table", { "aria-label": label }, make("thead", {}, head), make("tbody", {}, body));
}
