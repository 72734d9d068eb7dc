// The sections of the page, from the top: each is a function of what is chosen.

const PARTS = { clients: ["clients train", "--c0"], stand_ins: ["stand-ins", "--c2"], trust: ["trust", "--c4"], server_step: ["moderator's step", "--c1"], evaluate: ["testing", "--c3"] };
const SPARE = ["--c5", "--c6", "--c7"];

function section(id, title, say, ...content) {
  return make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), say ? make("p", { class: "say" }, say) : null, ...content);
}

function table(caption, head, rows, kinds = []) {
  const cell = (value, i) => (value instanceof Node && value.tagName === "TD" ? value : i === 0 ? make("th", { scope: "row" }, value) : make("td", { class: kinds[i] || "" }, value));
  return make("div", { class: "tabled" }, make("p", { class: "caption" }, caption), make("p", { class: "cue", "aria-hidden": "true" }, "more to the right: swipe or scroll →"),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      make("table", {},
        make("thead", {}, make("tr", {}, ...head.map((text, i) => make("th", { scope: "col", class: kinds[i] || "" }, text)))),
        make("tbody", {}, ...rows.map(row => make("tr", {}, ...row.map(cell)))))));
}

function metricSection(run) {
  const series = methodsShown().map(label => ({
    label, ...colourOf(label),
    end: finalOf(shown().filter(one => one.label === label)),
    points: meanOf(shown().filter(one => one.label === label)).map(p => ({ round: p.round, value: p.mean, low: p.mean - p.deviation, high: p.mean + p.deviation })),
  }));
  const seeds = view.seed === "all" ? seedsHere().length : 1;
  const say = (seeds > 1 ? `Lines are means over ${seeds} seeds, bands one standard deviation. ` : "") + `At the right of each line: its final value, the mean of the last tenth of the tests, at least three. Below, each client round by round` + (here().length > 1 ? ` in ${nameOf(run)}.` : ".");
  const spoken = series.map(line => `${line.label} ends at ${measured(line.end ?? line.points[line.points.length - 1]?.value)}`).join("; ");
  const tell = round => {
    if (round === null) return "";
    const told = series.map(line => [line, line.points.find(p => p.round === round)]).filter(([, p]) => p);
    return told.length ? `Round ${round}\n` + told.sort((a, b) => (metric().smaller ? -1 : 1) * (b[1].value - a[1].value)).map(([line, p]) => `${line.label}: ${measured(p.value)}${p.high > p.low ? ` ± ${inTable(p.high - p.value)}` : ""}`).join("\n") : "";
  };
  const share = (value, exact) => (exact ? `${(100 * value).toFixed(1)} %` : `${Number((100 * value).toFixed(1))} %`);
  const options = { height: narrow() ? 230 : 320, ...(isShare() ? { format: share, least: 0, most: 1 } : { format: number }), tell };
  return section("metric", `Test ${metric().name}, and who was there`, say, lines("metric-plot", `Test ${metric().name} over rounds under ${view.scenario}: ${spoken}`, series, options), presencePlot(run));
}

const capital = text => text[0].toUpperCase() + text.slice(1);
const nameOf = run => `${run.label}, seed ${run.seed}`;

function summarySection() {
  const scenarios = allScenarios();
  const final = (label, scenario) => runs.filter(run => run.label === label && run.scenario === scenario && run.final !== null).map(run => run.final);
  const tops = Object.fromEntries(scenarios.map(s => [s, best(allMethods().map(label => final(label, s)).filter(values => values.length).map(average))]));
  const rows = allMethods().map(label => {
    const own = runs.filter(run => run.label === label);
    const cost = [average(own.map(run => sum(Object.values(run.seconds).map(sum)))), average(own.map(run => sum(run.up))), average(own.map(run => sum(run.down)))];
    return [label, ...scenarios.map(s => {
      const values = final(label, s);
      if (!values.length) return make("td", { class: "n" }, "–");
      const mean = average(values);
      const text = `${inTable(mean)}${values.length > 1 ? ` ± ${inTable(deviation(values))}` : ""}`;
      return make("td", { class: Math.abs(mean - tops[s]) <= 1e-9 && allMethods().length > 1 ? "n best" : "n" }, text);
    }), seconds(cost[0]), bytes(cost[1]), bytes(cost[2])];
  });
  const counts = unique(runs.map(run => run.seed)).length;
  return section("summary", "In numbers", "", table(
    `Final test ${titled()}, the mean over a run's last tenth (at least three tests)${counts > 1 ? `, mean ± deviation over ${counts} seeds` : ""}; time and traffic of a run.`,
    ["method", ...scenarios, "time", "sent up", "sent down"], rows, ["", ...scenarios.map(() => "n"), "n", "n", "n"]));
}

function forgettingSection(run) {
  const clients = run.clientValues, classes = run.classValues;
  if (!clients && !classes) return null;
  const content = [], told = [];
  const classNames = run.classes.map(name => ({ name }));
  const of = run.classMetric, byClass = `${capital(of.name)} on each class of the test set`;
  for (const [id, title, grid, names, measure] of [["clients-heat", `${capital(metric().name)} at each client, on its own samples`, clients, clientNames(run), metric()], ["classes-heat", byClass, classes, classNames, of]]) {
    if (!grid) continue;
    const ends = names.map((row, i) => ({ ...row, full: id === "clients-heat" ? run.names[i] : row.name, ...lastAndLost(rowOf(grid, i, run.rounds.length), measure) })).filter(row => row.last !== undefined);
    const worst = ends.reduce((a, b) => (a === null || b.lost > a.lost ? b : a), null);
    if (worst && worst.lost >= 0.1) told.push(`${id === "classes-heat" ? worst.name : worst.full} (${measured(worst.best, measure)} at best, ${measured(worst.last, measure)} now)`);
    content.push(make("h3", {}, title), heat(id, `${title}: ${ends.map(row => `${row.name} ${measured(row.last, measure)}`).join(", ")}`, run, grid, names, value => measured(value, measure), true, measure));
  }
  const say = (told.length ? `Most forgotten: ${told.join(" and ")}. ` : `Nobody lost more than 10 ${isShare() ? "points" : "%"}. `) + `At the right: the last value, and ${metric().smaller ? "▲" : "▼"} ${isShare() ? "the points lost since the best" : "how much worse it is than the best"}.`;
  return section("forgetting", "Who is being forgotten?", say, ...content);
}

function trustSection(run) {
  const content = [];
  const names = clientNames(run);
  if (run.weights) content.push(make("h3", {}, "Share of the average"), heat("weights-heat", `Weight of each client's update in ${nameOf(run)}`, run, run.weights, names, percent, false));
  if (run.scores) content.push(make("h3", {}, "Scores"), heat("scores-heat", `Score of each client in ${nameOf(run)}`, run, run.scores, names, number, false));
  if (run.credibility) content.push(make("h3", {}, "How far those who tested were believed"), heat("credibility-heat", `Credibility of each client as a tester in ${nameOf(run)}`, run, run.credibility, names, percent, false));
  const suspects = run.happenings.filter(row => row.kind === "suspected" || row.kind === "refused");
  if (suspects.length) content.push(make("h3", {}, "Suspected and refused"), happeningsTable("Who was suspected or refused, and why", suspects, run));
  if (!content.length) return null;
  return section("trust", "Whom the moderator believed", suspects.length ? "" : "Nobody was suspected and no update was refused.", ...content);
}

// The first rows are seen at once, the rest on demand.
function happeningsTable(caption, rows, run, most = 12) {
  if (rows.length > most) {
    const rest = make("details", {}, make("summary", {}, `${rows.length - most} more`), happeningsTable(`${caption}, continued`, rows.slice(most), run, Infinity));
    return make("div", {}, happeningsTable(caption, rows.slice(0, most), run), rest);
  }
  return table(caption, ["client", "what", "why", "rounds", "times"], rows.map(row => [
    row.client === null ? "–" : `${run.names[row.client].replace(/^client /, "")}${run.hostile.includes(row.client) ? " ☠" : ""}`, make("td", { class: `kind ${row.kind}` }, row.kind), row.why, row.rounds, row.count ? String(row.count) : "",
  ]), ["", "", "wide", "rounds", "n"]);
}

function costSection(run) {
  const parts = Object.keys(run.seconds), colour = part => (PARTS[part] || [part, SPARE[parts.indexOf(part) % 3]])[1], word = part => (PARTS[part] || [part.replace("_", " ")])[0];
  const totals = parts.map(part => sum(run.seconds[part])), whole = sum(totals);
  const seen = parts.filter((_, i) => totals[i] > 0.002 * whole);
  const bars = stack("seconds-plot", `Seconds of each round: ${parts.map((part, i) => `${word(part)} ${seconds(totals[i])}`).join(", ")}`, run, seen.map(part => ({ name: word(part), colour: css(colour(part)), values: run.seconds[part] })), seconds);
  const traffic = ["up", "down"].map(way => ({ label: way === "up" ? "sent up" : "sent down", colour: `var(--${way})`, dash: way === "up" ? "" : "6 4", points: run.rounds.map((round, i) => ({ round, value: run[way][i] })) }));
  const tell = round => { const i = run.rounds.indexOf(round); return i < 0 ? "" : `Round ${round}\n↑ ${bytes(run.up[i])} to the moderator\n↓ ${bytes(run.down[i])} to the clients`; };
  const legend = (items, mark) => make("ul", { class: "legend", "aria-hidden": "true" }, ...items.map(mark));
  return section("cost", "What it cost", `${nameOf(run)}: ${seconds(whole)} in ${run.rounds.length} round${run.rounds.length === 1 ? "" : "s"}; ${bytes(sum(run.up))} sent up, ${bytes(sum(run.down))} down.`,
    make("h3", {}, "Seconds a round"), bars, legend(seen, part => make("li", {}, square(css(colour(part))), `${word(part)} ${seconds(sum(run.seconds[part]))}`)),
    make("h3", {}, "Bytes a round"), lines("bytes-plot", `Bytes of each round: ${bytes(sum(run.up))} sent up and ${bytes(sum(run.down))} down in all`, traffic, { height: 150, format: bytes, zero: true, tell }));
}

function square(colour) {
  const box = svg("svg", { width: 13, height: 13, class: "swatch" });
  box.append(svg("rect", { width: 13, height: 13, rx: 2, fill: colour }));
  return box;
}

// Bars of several parts on each other, one for each round; one path for each part keeps it quick.
function stack(id, label, run, parts, format) {
  const height = 150;
  const { node, plot } = figure(id, label, height, round => {
    const i = run.rounds.indexOf(round);
    return i < 0 ? "" : `Round ${round}: ${format(sum(parts.map(part => part.values[i])))}\n` + parts.map(part => `${part.name}: ${format(part.values[i])}`).join("\n");
  });
  plot.prepend(svg("svg", { width: "100%", height, "aria-hidden": "true" }));
  node.draw = () => {
    const picture = plot.querySelector("svg"), x = scaleX(plot.clientWidth);
    picture.replaceChildren();
    const inside = run.rounds.map((round, i) => [round, i]).filter(([round]) => round >= x.low && round <= x.high);
    const high = Math.max(1e-9, ...inside.map(([, i]) => sum(parts.map(part => part.values[i])))) * 1.04;
    const y = value => 6 + (height - 32) * (1 - value / high);
    for (const tick of niceTicks(0, high, 3)) {
      picture.append(svg("line", { x1: left(), x2: plot.clientWidth - right(), y1: y(tick), y2: y(tick), stroke: css("--grid") }));
      picture.append(svg("text", { x: left() - 8, y: y(tick) + 4, "text-anchor": "end" }, tick ? format(tick) : "0"));
    }
    const base = run.rounds.map(() => 0), wide = Math.max(1, Math.min(28, x.step - (x.step > 6 ? 2 : 0)));
    for (const part of parts) {
      let d = "";
      for (const [round, i] of inside) {
        d += `M${(x.of(round) - wide / 2).toFixed(1)},${y(base[i]).toFixed(1)}h${wide.toFixed(1)}V${y(base[i] + part.values[i]).toFixed(1)}h${(-wide).toFixed(1)}Z`;
        base[i] += part.values[i];
      }
      picture.append(svg("path", { class: "bars", d, fill: part.colour }));
    }
    axisX(picture, x, height - 22, true);
  };
  return node;
}

function digestSection(run) {
  const content = [make("h3", {}, "What left the house"), make("ul", { class: "box" }, ...run.privacy.map(line => make("li", {}, line)))];
  if (run.digests.length) {
    const stood = client => (run.presence[client] || "").split("").filter(code => "dq".includes(code)).length;
    const rows = run.digests.map(d => [run.names[d.client].replace(/^client /, ""), bytes(d.bytes), String(d.digests ?? "–"), String(d.samples ?? "–"), String(d.spd ?? "–"), d.mode || "–", String(d.round), String(stood(d.client))]);
    content.unshift(table(`What lies with the moderator: digests of ${run.digests.length} clients, ${bytes(sum(run.digests.map(d => d.bytes)))}`,
      ["client", "bytes", "digests", "of samples", "mixed in each", "protection", "since round", "rounds stood in"], rows, ["", "n", "n", "n", "n", "", "n", "n"]));
  }
  if (run.guidance.length) content.push(make("h3", {}, "Guidance: what the moderator's producer makes of digests"), make("div", { class: "pictures" }, ...run.guidance.map(one => (one.source ? make("img", { src: one.source, alt: one.words, title: one.words }) : make("p", { class: "say" }, one.words)))));
  return section("digests", run.digests.length ? "What stands in, and what left the house" : "Privacy", "", ...content);
}

function notesSection(run) {
  const rows = run.happenings.filter(row => row.kind === "note" || row.kind === "absent");
  return rows.length ? section("notes", "Notes", "", happeningsTable(`Notes of ${nameOf(run)}`, rows, run)) : null;
}

function tableSection(run) {
  const list = methodsShown().map(label => [label, meanOf(shown().filter(one => one.label === label))]);
  const rounds = unique(list.flatMap(([, points]) => points.map(p => p.round))).sort((a, b) => a - b);
  const details = make("details", {}, make("summary", {}, `${capital(metric().name)} round by round, as a table`));
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    const maps = list.map(([, points]) => new Map(points.map(p => [p.round, p])));
    details.append(table(`Test ${titled()} under ${view.scenario}`, ["round", ...list.map(([label]) => label), `away in ${nameOf(run)}`], rounds.map(round => [
      String(round), ...maps.map(map => (map.has(round) ? inTable(map.get(round).mean) : "–")), awayIn(run, round)]), ["", ...list.map(() => "n"), ""]));
  });
  const texts = value => (typeof value === "object" ? Object.entries(value).map(([key, inner]) => `${key}: ${inner}`).join(", ") : String(value));
  const facts = make("details", {}, make("summary", {}, `The experiment and versions of ${nameOf(run)}`),
    table("The experiment", ["key", "value"], Object.entries(run.experiment).map(([key, value]) => [key, texts(value)])),
    ...run.environments.map((one, i) => table(i ? `Resumed with` : "Started with", ["what", "which"], Object.entries(one).filter(([key]) => key !== "pid").map(([key, value]) => [key, texts(value)]))));
  return section("facts", "Everything else", "", details, facts);
}

function awayIn(run, round) {
  const column = run.rounds.indexOf(round);
  if (column < 0) return "";
  return run.presence.flatMap((row, client) => ("adrq".includes(row[column]) ? [run.names[client].replace(/^client /, "")] : [])).join(", ");
}
