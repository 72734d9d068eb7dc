// Figures of the final model on the test set, each with axes of its own: ROC, calibration, residuals, Kaplan-Meier.

const GROUP_COLOURS = ["--c0", "--c4", "--c1", "--c2", "--c3", "--c5"];

// A plot whose axes are no rounds: draw(picture, x, y) puts the content in.
function chart(label, range, titles, draw) {
  const holder = make("div", { class: "chart", role: "img", "aria-label": label });
  const node = make("figure", { class: "half", role: "none" }, holder);
  node.draw = () => {
    const width = Math.max(240, holder.clientWidth), height = Math.round(Math.min(width * 0.82, 340));
    const edge = { left: 52, right: 14, top: 10, bottom: 40 };
    const x = value => edge.left + ((value - range.x[0]) / (range.x[1] - range.x[0])) * (width - edge.left - edge.right);
    const y = value => height - edge.bottom - ((value - range.y[0]) / (range.y[1] - range.y[0])) * (height - edge.top - edge.bottom);
    const picture = svg("svg", { width: "100%", height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const tick of niceTicks(...range.y, 5)) {
      picture.append(svg("line", { x1: edge.left, x2: width - edge.right, y1: y(tick), y2: y(tick), stroke: css("--grid") }));
      picture.append(svg("text", { x: edge.left - 6, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick)));
    }
    for (const tick of niceTicks(...range.x, narrow() ? 4 : 5)) picture.append(svg("text", { x: x(tick), y: height - edge.bottom + 16, "text-anchor": "middle" }, tickText(tick)));
    picture.append(svg("text", { x: (edge.left + width - edge.right) / 2, y: height - 4, "text-anchor": "middle" }, titles.x));
    picture.append(svg("text", { x: 12, y: (height - edge.bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(height - edge.bottom) / 2})` }, titles.y));
    draw(picture, x, y);
    holder.replaceChildren(picture);
  };
  return node;
}

const tickText = value => String(Number(value.toPrecision(4)));
const pathOf = (xs, ys, x, y) => xs.map((one, i) => `${i ? "L" : "M"}${x(one).toFixed(1)},${y(ys[i]).toFixed(1)}`).join("");
const stepsOf = (xs, ys, x, y) => xs.map((one, i) => (i ? `H${x(one).toFixed(1)}V${y(ys[i]).toFixed(1)}` : `M${x(one).toFixed(1)},${y(ys[i]).toFixed(1)}`)).join("");
const diagonal = (picture, x, y) => picture.append(svg("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), stroke: css("--hatch"), "stroke-dasharray": "4 4" }));

function keyed(node, entries) {
  node.append(make("ul", { class: "legend", "aria-hidden": "true" }, ...entries.map(([colour, text]) => make("li", {}, square(css(colour)), text))));
  return node;
}

function rocChart(lines) {
  const told = lines.map(line => `${line.name}: area ${number(line.value)}`).join(", ");
  const node = chart(`ROC curve, ${told}`, { x: [0, 1], y: [0, 1] }, { x: "1 − specificity", y: "sensitivity" }, (picture, x, y) => {
    diagonal(picture, x, y);
    lines.forEach((line, i) => picture.append(svg("path", { d: pathOf(line.x, line.y, x, y), fill: "none", stroke: css(GROUP_COLOURS[i]), "stroke-width": 2 })));
  });
  return keyed(node, lines.map((line, i) => [GROUP_COLOURS[i], `${line.name}: area ${number(line.value)}`]));
}

function calibrationChart(one) {
  const told = one.x.map((chance, i) => `told ${percent(chance)}, came true ${percent(one.y[i])} of ${one.count[i]}`).join("; ");
  const most = Math.max(...one.count);
  const node = chart(`Calibration: ${told}`, { x: [0, 1], y: [0, 1] }, { x: "probability that is told", y: "share that came true" }, (picture, x, y) => {
    diagonal(picture, x, y);
    picture.append(svg("path", { d: pathOf(one.x, one.y, x, y), fill: "none", stroke: css("--c0"), "stroke-width": 1.5 }));
    one.x.forEach((chance, i) => picture.append(svg("circle", { cx: x(chance), cy: y(one.y[i]), r: 3 + 5 * Math.sqrt(one.count[i] / most), fill: css("--c0"), opacity: 0.75 })));
  });
  return keyed(node, [["--c0", `a tenth of probability; larger: more of ${sum(one.count)} samples`], ["--hatch", "perfectly calibrated"]]);
}

function residualChart(one) {
  const count = one.cells.length, most = Math.max(...one.cells.flat()), total = sum(one.cells.flat());
  const node = chart(`Residuals of ${total} samples: predicted ${number(one.x[0])} to ${number(one.x[1])}, actual minus predicted ${number(one.y[0])} to ${number(one.y[1])}`, { x: one.x, y: one.y }, { x: "predicted", y: "actual − predicted" }, (picture, x, y) => {
    const wide = (x(one.x[1]) - x(one.x[0])) / count, high = (y(one.y[0]) - y(one.y[1])) / count;
    one.cells.forEach((row, r) => row.forEach((n, c) => {
      if (n) picture.append(svg("rect", { x: x(one.x[0]) + c * wide, y: y(one.y[0]) - (r + 1) * high, width: Math.max(1, wide - 0.5), height: Math.max(1, high - 0.5), fill: css("--c0"), opacity: 0.25 + 0.75 * Math.sqrt(n / most) }));
    }));
    picture.append(svg("line", { x1: x(one.x[0]), x2: x(one.x[1]), y1: y(0), y2: y(0), stroke: css("--c1"), "stroke-dasharray": "4 4" }));
  });
  return keyed(node, [["--c0", `samples in a cell, at most ${most}`], ["--c1", "no error"]]);
}

function survivalChart(lines) {
  const end = Math.max(...lines.map(line => line.x[line.x.length - 1]));
  const word = line => `${line.name}: ${line.samples} samples, ${line.value} events`;
  const node = chart(`Kaplan-Meier curves by predicted risk. ${lines.map(line => `${word(line)}, ${percent(line.y[line.y.length - 1])} beyond the end`).join("; ")}`, { x: [0, end || 1], y: [0, 1] }, { x: "time", y: "share without the event" }, (picture, x, y) =>
    lines.forEach((line, i) => picture.append(svg("path", { d: stepsOf(line.x, line.y, x, y), fill: "none", stroke: css(GROUP_COLOURS[i]), "stroke-width": 2 }))));
  return keyed(node, lines.map((line, i) => [GROUP_COLOURS[i], word(line)]));
}

function curvesSection(run) {
  const found = run.curves, content = [];
  const add = (title, node) => content.push(make("div", {}, make("h3", {}, title), node));
  if (found.roc?.length) add("ROC curve", rocChart(found.roc));
  if (found.calibration?.length) add("Calibration", calibrationChart(found.calibration[0]));
  if (found.residuals?.length) add("Residuals", residualChart(found.residuals[0]));
  if (found.survival?.length) add("Survival by predicted risk (Kaplan-Meier)", survivalChart(found.survival));
  return content.length ? section("curves", "The final model on the test set", here().length > 1 ? nameOf(run) : "", make("div", { class: "halves" }, ...content)) : null;
}

function sitesSection(run) {
  const test = run.lastTest;
  if (!test) return null;
  const say = `After round ${test.round}, on each client's own validation samples; overall on the test set where the moderator has one, else over all clients.`
    + " Over several clients, areas and C-indices are means weighted by samples; other metrics are of all samples together."
    + (test.threshold === null ? "" : ` Sensitivity and specificity are at a probability of ${test.threshold}, the median of what is best for each client.`);
  const more = test.more ? `, ${test.more} more clients are in rounds.jsonl` : "";
  return section("sites", "How well, and where", say, table(`The last test${here().length > 1 ? ` of ${nameOf(run)}` : ""}${more}`, test.head, test.rows, ["", ...test.head.slice(1).map(() => "n")]));
}
