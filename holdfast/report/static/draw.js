// Drawing: small helpers for elements, lines as SVG, heat maps on canvas. All plots of rounds share one x axis.

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes))
    key === "on" ? Object.entries(value).forEach(([event, act]) => node.addEventListener(event, act)) : node.setAttribute(key, value);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const narrow = () => window.innerWidth <= 640;
const left = () => (narrow() ? 68 : 112);
const right = () => (narrow() ? 58 : 176);

// Where a round lies: cells are one wide, so round r covers [r - 1/2, r + 1/2].
function scaleX(width) {
  const [low, high] = range();
  const step = (width - left() - right()) / (high - low + 1);
  return { of: round => left() + (round - low + 0.5) * step, step, low, high, round: x => Math.min(high, Math.max(low, Math.round((x - left()) / step + low - 0.5))) };
}

function niceTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(candidate => candidate >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9; i++) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function roundTicks(low, high, count) {
  if (high - low < count) return Array.from({ length: high - low + 1 }, (_, i) => low + i);
  return unique([low, ...niceTicks(low, high, count).filter(tick => tick > low + (high - low) / (2 * count)).map(Math.round)]);
}

function axisX(into, x, y, label) {
  for (const tick of roundTicks(x.low, x.high, narrow() ? 5 : 10))
    into.append(svg("text", { x: x.of(tick), y: y + 15, "text-anchor": "middle" }, tick));
  if (label) into.append(svg("text", { x: left() - 8, y: y + 15, "text-anchor": "end" }, "round"));
}

// A figure whose plot can be hovered, dragged to zoom, and walked with the arrow keys.
function figure(id, label, height, tell) {
  const plot = make("div", { class: "plot", id, tabindex: "0", role: "img", "aria-label": label });
  plot.style.height = `${height}px`;
  const over = svg("svg", { class: "over", "aria-hidden": "true", width: "100%", height });
  plot.append(over);
  let start = null;
  const x = () => scaleX(plot.clientWidth);
  const roundAt = event => x().round(event.clientX - plot.getBoundingClientRect().left);
  plot.addEventListener("pointerdown", event => { start = { x: event.clientX, round: roundAt(event) }; });
  plot.addEventListener("pointermove", event => {
    const box = plot.getBoundingClientRect();
    moveCursor(roundAt(event));
    if (start && Math.abs(event.clientX - start.x) > 6) {
      if (!plot.hasPointerCapture(event.pointerId)) plot.setPointerCapture(event.pointerId);
      drawSelection(over, x(), start.round, roundAt(event), height);
    }
    showTip(tell(view.cursor, event.clientY - box.top), event.clientX, event.clientY);
  });
  plot.addEventListener("pointerup", event => {
    const from = start;
    start = null;
    over.replaceChildren();
    if (from && Math.abs(event.clientX - from.x) > 6) zoomTo(from.round, roundAt(event));
  });
  plot.addEventListener("pointercancel", () => { start = null; over.replaceChildren(); });
  plot.addEventListener("pointerleave", () => { if (!start) { hideTip(); moveCursor(null); } });
  plot.addEventListener("dblclick", () => zoomTo(null));
  plot.addEventListener("blur", () => { hideTip(); moveCursor(null); });
  plot.addEventListener("keydown", event => walk(event, plot, tell));
  return { node: make("figure", { role: "none" }, plot), plot };
}

function walk(event, plot, tell) {
  const [low, high] = range();
  const now = view.cursor ?? low;
  const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: low, End: high };
  if (event.key in moves) {
    moveCursor(Math.min(high, Math.max(low, view.cursor === null ? low : moves[event.key])));
    const text = tell(view.cursor, null);
    const box = plot.getBoundingClientRect();
    showTip(text, box.left + scaleX(plot.clientWidth).of(view.cursor), box.top + 20);
    document.getElementById("spoken").textContent = text || "";
  } else if (event.key === "+" || event.key === "=") {
    const half = Math.max(1, Math.round((high - low) / 4));
    zoomTo(Math.max(low, now - half), Math.min(high, now + half), plot.id);
  } else if (event.key === "-" || event.key === "Escape") zoomTo(null, null, plot.id);
  else return;
  event.preventDefault();
}

function drawSelection(over, x, from, to, height) {
  const [a, b] = [Math.min(from, to), Math.max(from, to)];
  over.replaceChildren(svg("rect", { x: x.of(a) - x.step / 2, width: (b - a + 1) * x.step, y: 0, height, fill: css("--accent"), opacity: 0.18 }));
}

function zoomTo(a, b, focus = null) {
  view.zoom = a === null || a === b ? null : [Math.min(a, b), Math.max(a, b)];
  render();
  if (focus) document.getElementById(focus)?.focus();
}

function moveCursor(round) {
  view.cursor = round;
  for (const plot of document.querySelectorAll(".plot")) {
    plot.querySelector(".cursor")?.remove();
    if (round === null) continue;
    const x = scaleX(plot.clientWidth);
    const line = svg("line", { class: "cursor", x1: x.of(round), x2: x.of(round), y1: 0, y2: plot.clientHeight, stroke: css("--quiet"), "stroke-width": 1, opacity: 0.7 });
    plot.querySelector(".over").append(line);
  }
}

function showTip(text, x, y) {
  const tip = document.getElementById("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(window.innerWidth - box.width - 6, x + 16))}px`;
  tip.style.top = `${y + 18 + box.height > window.innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
}

function hideTip() { document.getElementById("tip").hidden = true; }

// Lines: [{label, colour, dash, points: [{round, value, low, high}], end}], with `end`, or else the last value, at the right.
function lines(id, label, series, options) {
  const height = options.height;
  const { node, plot } = figure(id, label, height, options.tell);
  plot.prepend(svg("svg", { width: "100%", height, "aria-hidden": "true" }));
  node.draw = () => {
    const width = plot.clientWidth, x = scaleX(width), picture = plot.querySelector("svg");
    picture.replaceChildren();
    const inside = series.map(line => ({ ...line, points: line.points.filter(p => p.round >= x.low && p.round <= x.high) })).filter(line => line.points.length);
    const bounds = inside.flatMap(line => line.points.flatMap(p => [p.low ?? p.value, p.high ?? p.value]));
    const ticksWanted = Math.round(height / 55);
    let low = options.zero ? 0 : Math.min(...bounds), high = Math.max(...bounds);
    if (!bounds.length) [low, high] = [0, 1];
    if (high - low < 1e-9) [low, high] = [low - (options.zero ? 0 : 0.05), high + (high === 0 ? 1 : 0.05)];
    low = options.zero ? 0 : Math.max(options.least ?? -Infinity, low - 0.04 * (high - low));
    high = Math.min(options.most ?? Infinity, high + 0.04 * (high - low));
    const y = value => 8 + (height - 34) * (1 - (value - low) / (high - low));
    for (const tick of niceTicks(low, high, ticksWanted)) {
      picture.append(svg("line", { x1: left(), x2: width - right(), y1: y(tick), y2: y(tick), stroke: css("--grid") }));
      picture.append(svg("text", { x: left() - 8, y: y(tick) + 4, "text-anchor": "end" }, options.format(tick)));
    }
    axisX(picture, x, height - 22, true);
    for (const line of inside) drawLine(picture, line, x, y);
    endLabels(picture, inside, x, y, width, height, options);
  };
  return node;
}

function drawLine(picture, line, x, y) {
  const path = points => points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)},${b.toFixed(1)}`).join("");
  const middle = line.points.map(p => [x.of(p.round), y(p.value)]);
  if (line.points.some(p => p.high > p.low)) {
    const top = line.points.map(p => [x.of(p.round), y(p.high)]), bottom = line.points.map(p => [x.of(p.round), y(p.low)]).reverse();
    picture.append(svg("path", { class: "band", d: `${path([...top, ...bottom])}Z`, fill: line.colour, opacity: 0.16 }));
  }
  picture.append(svg("path", { class: "line", d: path(middle), fill: "none", stroke: line.colour, "stroke-width": 2, "stroke-dasharray": line.dash || "none", "stroke-linejoin": "round" }));
  if (middle.length <= 40) for (const [a, b] of middle) picture.append(svg("circle", { cx: a, cy: b, r: 2.4, fill: line.colour }));
}

// Labels at the right, pushed apart so that none covers another.
function endLabels(picture, series, x, y, width, height, options) {
  const places = series.map(line => ({ line, at: y(line.points[line.points.length - 1].value) })).sort((a, b) => a.at - b.at);
  for (let i = 1; i < places.length; i++) places[i].at = Math.max(places[i].at, places[i - 1].at + 14);
  for (let i = places.length - 1, floor = height - 26; i >= 0; i--, floor -= 14) places[i].at = Math.min(places[i].at, floor);
  for (const { line, at: place } of places) {
    const value = options.format(line.end ?? line.points[line.points.length - 1].value, true);
    const room = Math.floor((right() - 12) / 6.6) - value.length - 1;
    const name = narrow() || line.label.length > room ? (narrow() || room < 5 ? "" : `${line.label.slice(0, room - 1)}…`) : line.label;
    const text = svg("text", { x: width - right() + 8, y: place + 4, class: "strong" });
    text.append(svg("tspan", { fill: line.colour, "font-weight": 700 }, value), svg("tspan", {}, name ? ` ${name}` : ""));
    picture.append(text);
  }
}
