"use strict";
// What the page knows: runs as the payload tells them, and what is chosen to be shown.

const STEPS = 36 * 36 - 1;
const PRESENCE = {
  p: ["there", "--there"], a: ["away", "--away"], d: ["away, its digest stands in", "--digest"],
  s: ["suspected", "--suspected"], r: ["refused", "--refused"], q: ["refused, its digest stands in", "--refused"],
  n: ["not asked", "--unasked"],
};
const view = { scenario: null, off: new Set(), seed: "all", focus: null, zoom: null, cursor: null };
let runs = [];
let story = null;

function take(payload) {
  story = payload;
  runs = payload.runs;
  const scenarios = allScenarios();
  if (!scenarios.includes(view.scenario)) view.scenario = mostTelling();
  if (view.seed !== "all" && !seedsHere().includes(view.seed)) view.seed = "all";
}

// The scenario the headline speaks of: where methods lie furthest apart.
function mostTelling() {
  let best = allScenarios()[0], gap = -1;
  for (const scenario of allScenarios()) {
    const finals = runs.filter(run => run.scenario === scenario && run.final !== null).map(run => run.final);
    const apart = finals.length ? Math.max(...finals) - Math.min(...finals) : -1;
    if (apart > gap + 1e-9) { best = scenario; gap = apart; }
  }
  return best;
}

const unique = values => [...new Set(values)];
const allScenarios = () => unique(runs.map(run => run.scenario));
const allMethods = () => unique(runs.map(run => run.label));
const here = () => runs.filter(run => run.scenario === view.scenario);
const seedsHere = () => unique(here().map(run => run.seed)).sort((a, b) => a - b);
const shown = () => here().filter(run => !view.off.has(run.label) && (view.seed === "all" || run.seed === view.seed));
const methodsShown = () => unique(shown().map(run => run.label));

// The run whose clients are looked at closely: the chosen one if it is shown, else the one with the most to tell.
function focusRun() {
  const list = shown();
  const chosen = list.find(run => run.id === view.focus);
  if (chosen) return chosen;
  const score = run => run.digests.length * 2 + run.happenings.length;
  return list.reduce((best, run) => (best === null || score(run) > score(best) ? run : best), null);
}

// What a method came to, as the headline says it: the mean of its runs' final values.
function finalOf(list) {
  const finals = list.map(run => run.final).filter(value => value !== null);
  return finals.length ? average(finals) : null;
}

function colourOf(label) {
  const place = runs.find(run => run.label === label)?.colour ?? 0;
  return { colour: `var(--c${place % 8})`, dash: ["", "7 4", "2 3", "9 3 2 3"][Math.floor(place / 8) % 4] };
}

// A grid's value: two letters in base 36 between low and high; null where there is none.
function at(grid, row, column) {
  const text = grid.rows[row].substr(2 * column, 2);
  if (text === "--" || text === "") return null;
  return grid.low + (grid.high - grid.low) * parseInt(text, 36) / STEPS;
}

const rowOf = (grid, row, length) => Array.from({ length }, (_, column) => at(grid, row, column));

// Mean and spread of the leading metric over seeds, for each round that was tested.
function meanOf(list) {
  const byRound = new Map();
  for (const run of list)
    run.rounds.forEach((round, i) => {
      if (run.values[i] === null) return;
      if (!byRound.has(round)) byRound.set(round, []);
      byRound.get(round).push(run.values[i]);
    });
  return [...byRound.keys()].sort((a, b) => a - b).map(round => {
    const values = byRound.get(round);
    const mean = average(values);
    return { round, mean, deviation: deviation(values), count: values.length };
  });
}

const sum = values => values.reduce((total, value) => total + value, 0);
const average = values => sum(values) / values.length;
function deviation(values) {
  if (values.length < 2) return 0;
  const mean = average(values);
  return Math.sqrt(sum(values.map(value => (value - mean) ** 2)) / (values.length - 1));
}

function fullRange() {
  const list = here();
  return [1, Math.max(2, ...list.map(run => (story.live && !run.finished ? run.planned : run.rounds[run.rounds.length - 1] || 1)))];
}
const range = () => view.zoom || fullRange();

// The leading metric: shares are shown as percent, other values as plain numbers with their unit.
const metric = () => (runs.find(run => run.final !== null) ?? runs[0])?.metric ?? { name: "accuracy", unit: "%", smaller: false };
const isShare = (of = metric()) => of.unit === "%";
const titled = () => (metric().unit ? `${metric().name} in ${metric().unit}` : metric().name);
const inTable = value => (isShare() ? (100 * value).toFixed(1) : number(value));
const measured = (value, of = metric()) => (isShare(of) ? percent(value) : value === null || value === undefined ? "–" : `${number(value)}${of.unit ? `\u00a0${of.unit}` : ""}`);
const best = (values, of = metric()) => (of.smaller ? Math.min(...values) : Math.max(...values));
// How much worse than the best a value is: in points of a share, else relative to the best.
const lostSince = (top, value, of = metric()) => (of.smaller ? value - top : top - value) / (isShare(of) ? 1 : Math.max(Math.abs(top), 1e-12));

const percent = value => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)}\u00a0%`);
function bytes(value) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000 || unit === "GB") return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1000;
  }
}
const seconds = value => (value >= 100 ? `${Math.round(value)} s` : value >= 1 ? `${value.toFixed(1)} s` : `${Math.round(1000 * value)} ms`);
const number = value => (value === null ? "–" : Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3).replace(/\.?0+$/, ""));
