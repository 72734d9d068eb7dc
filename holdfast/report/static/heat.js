// Rows of cells, one for each round: who was there, and how well each client and class fares.

// Cividis: made to look alike to those who see all colours and those who do not.
const CIVIDIS = [[0, 32, 77], [49, 68, 107], [102, 105, 112], [149, 143, 120], [203, 186, 105], [255, 234, 70]];

function cividis(share) {
  const place = Math.min(0.9999, Math.max(0, share)) * (CIVIDIS.length - 1), i = Math.floor(place), part = place - i;
  return `rgb(${CIVIDIS[i].map((value, k) => Math.round(value + part * (CIVIDIS[i + 1][k] - value))).join(",")})`;
}

const MARKS = { s: "?", d: "D", r: "×" }; // where there is room: colours alone do not tell everyone apart
const TOP = 4; // room for the first name where rows are thin
const rowHeight = count => (count <= 12 ? 20 : count <= 32 ? 14 : 9);

// rows: [{name, bad, end, warn}]; paint(pen, row, column, x, y, width, height) draws one cell.
function cells(id, label, run, rows, paint, tell) {
  const size = rowHeight(rows.length), height = TOP + size * rows.length + 24;
  const rowAt = y => Math.min(rows.length - 1, Math.max(0, Math.floor((y - TOP) / size)));
  const { node, plot } = figure(id, label, height, (round, y) => {
    const column = run.rounds.indexOf(round);
    return column < 0 || round === null ? "" : tell(y === null ? null : rowAt(y), column);
  });
  const canvas = make("canvas", { "aria-hidden": "true" }), words = svg("svg", { width: "100%", height, "aria-hidden": "true" });
  words.style.position = "absolute";
  words.style.inset = "0";
  plot.prepend(canvas, words);
  node.draw = () => {
    const width = plot.clientWidth, x = scaleX(width), ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const gapX = x.step > 6 ? 1 : 0, gapY = size > 10 ? 2 : 1;
    run.rounds.forEach((round, column) => {
      if (round < x.low || round > x.high) return;
      const from = Math.round(x.of(round) - x.step / 2), to = Math.round(x.of(round) + x.step / 2);
      rows.forEach((_, row) => paint(pen, row, column, from, TOP + row * size, Math.max(1, to - from - gapX), size - gapY));
    });
    words.replaceChildren();
    nameRows(words, rows, size, width);
    axisX(words, x, TOP + size * rows.length, true);
  };
  return node;
}

function nameRows(words, rows, size, width) {
  const every = size >= 12 ? 1 : Math.ceil(13 / size);
  rows.forEach((row, i) => {
    if (i % every) return;
    const most = narrow() ? 8 : 14, name = row.name.length > most ? `${row.name.slice(0, most - 1)}…` : row.name;
    words.append(svg("text", { x: left() - 8, y: TOP + i * size + size / 2 + 3, "text-anchor": "end", class: row.bad ? "bad" : "" }, name));
    if (row.end) words.append(svg("text", { x: width - right() + 8, y: TOP + i * size + size / 2 + 3, class: row.warn ? "bad" : "strong" }, row.end));
  });
}

// Slanted lines; where a cell is too small for them, a pale ground.
function hatch(pen, x, y, width, height, colour) {
  pen.save();
  if (width < 8) {
    pen.globalAlpha = 0.4;
    pen.fillStyle = colour;
    pen.fillRect(x, y, width, height);
    pen.restore();
    return;
  }
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let k = x - height - ((x - height) % 5); k < x + width; k += 5) { pen.moveTo(k, y + height); pen.lineTo(k + height, y); }
  pen.stroke();
  pen.restore();
}

function clientNames(run) {
  return Array.from({ length: run.clients }, (_, client) => ({
    name: `${run.hostile.includes(client) ? "☠ " : ""}${narrow() ? run.names[client].replace(/^client /, "") : run.names[client]}`, bad: run.hostile.includes(client),
  }));
}

function presencePlot(run) {
  const colours = Object.fromEntries(Object.entries(PRESENCE).map(([code, [, name]]) => [code, css(name)]));
  const pale = css("--hatch"), green = css("--digest"), ink = css("--card");
  const paint = (pen, row, column, x, y, width, height) => {
    const code = run.presence[row][column];
    pen.fillStyle = colours[code];
    pen.fillRect(x, y, width, height);
    if (code === "a") hatch(pen, x, y, width, height, pale);
    if (code === "q") { pen.fillStyle = green; pen.fillRect(x, y + height / 2, width, height / 2); }
    if (width < 9 || height < 12 || !(code in MARKS)) return;
    pen.fillStyle = ink;
    pen.font = "700 11px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.fillText(MARKS[code], x + width / 2, y + height / 2 + 4);
  };
  const counts = code => sum(run.presence.map(row => row.split(code).length - 1));
  const total = Math.max(1, run.clients * run.rounds.length);
  const seen = Object.keys(PRESENCE).filter(code => counts(code));
  const label = `Presence of ${run.clients} clients over ${run.rounds.length} rounds: ` + seen.map(code => `${PRESENCE[code][0]} ${Math.round((100 * counts(code)) / total)} %`).join(", ");
  const rows = clientNames(run).map((row, client) => ({ ...row, end: endOfPresence(run, client) }));
  const node = cells("presence", label, run, rows, paint, (row, column) => {
    const all = run.presence.map(line => line[column]);
    if (row !== null) return `Round ${run.rounds[column]}, ${run.names[row]}: ${PRESENCE[all[row]][0]}${run.hostile.includes(row) ? " (hostile)" : ""}`;
    return `Round ${run.rounds[column]}: ` + Object.keys(PRESENCE).filter(code => all.includes(code)).map(code => `${PRESENCE[code][0]} ${all.flatMap((c, i) => (c === code ? [run.names[i].replace(/^client /, "")] : [])).join(", ")}`).join("; ");
  });
  const legend = make("ul", { class: "legend", "aria-hidden": "true" }, ...seen.map(code => make("li", {}, presenceSwatch(code), PRESENCE[code][0])));
  if (run.hostile.length) legend.append(make("li", {}, "☠ hostile, which the moderator does not know"));
  node.append(legend);
  return node;
}

function endOfPresence(run, client) {
  if (narrow() || run.clients > 32) return "";
  const row = run.presence[client].replaceAll("n", ""), heard = row.split("").filter(code => "ps".includes(code)).length;
  return row.length ? `${heard} of ${row.length} rounds` : "";
}

function presenceSwatch(code) {
  const box = svg("svg", { width: 18, height: 13, class: "swatch" });
  box.append(svg("rect", { width: 18, height: 13, fill: css(PRESENCE[code][1]), stroke: css("--line") }));
  if (code === "a") for (const k of [-4, 2, 8, 14]) box.append(svg("line", { x1: k, y1: 13, x2: k + 13, y2: 0, stroke: css("--hatch") }));
  if (code === "q") box.append(svg("rect", { y: 6.5, width: 18, height: 6.5, fill: css("--digest") }));
  const mark = MARKS[code];
  if (mark) {
    const letter = svg("text", { x: 9, y: 10.5, "text-anchor": "middle", "font-weight": 700 }, mark);
    letter.style.fill = css("--card");
    letter.style.fontSize = "11px";
    box.append(letter);
  }
  return box;
}

// A heat map of a grid. With `forgetting`, the end of each row tells its last value and what it lost since its best.
function heat(id, label, run, grid, names, format, forgetting, of = metric()) {
  const length = run.rounds.length;
  const rows = names.map((row, i) => ({ ...row, ...(forgetting ? lastAndLost(rowOf(grid, i, length), of) : { end: lastOf(rowOf(grid, i, length), format) }) }));
  const span = grid.high - grid.low || 1, nothing = css("--grid");
  const paint = (pen, row, column, x, y, width, height) => {
    const value = at(grid, row, column);
    pen.fillStyle = value === null ? nothing : cividis((value - grid.low) / span);
    pen.fillRect(x, y, width, height);
  };
  const tell = (row, column) => {
    const one = i => `${names[i].name}: ${format(at(grid, i, column))}`;
    if (row !== null) return `Round ${run.rounds[column]}, ${one(row)}`;
    return `Round ${run.rounds[column]}\n` + names.slice(0, 16).map((_, i) => one(i)).join("\n") + (names.length > 16 ? `\nand ${names.length - 16} more` : "");
  };
  const node = cells(id, label, run, rows, paint, tell);
  const bar = make("span", { class: "swatch" });
  bar.style.cssText = `width:110px;height:11px;border-radius:2px;background:linear-gradient(90deg,${[0, 0.2, 0.4, 0.6, 0.8, 1].map(cividis).join(",")})`;
  node.append(make("p", { class: "legend", "aria-hidden": "true" }, make("span", {}, `${format(grid.low)} `, bar, `${format(grid.high)}`)));
  return node;
}

function lastOf(values, format) {
  const last = values.filter(value => value !== null).pop();
  return last === undefined ? "" : format(last);
}

function lastAndLost(values, of = metric()) {
  const there = values.filter(value => value !== null);
  if (!there.length) return { end: "" };
  const last = there[there.length - 1], top = best(there, of), lost = lostSince(top, last, of);
  const text = isShare(of) ? `${Math.round(100 * last)} %` : measured(last, of), mark = of.smaller ? "▲" : "▼";
  return { end: narrow() || lost < 0.005 ? text : `${text}  ${mark} ${Math.round(100 * lost)}${isShare(of) ? "" : " %"}`, warn: lost >= 0.2, last, lost, best: top };
}
