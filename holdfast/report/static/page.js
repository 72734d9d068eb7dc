// The page: what can be switched, how it is put together, and how a live one keeps up.

function pick(change) {
  change();
  view.cursor = null;
  const focused = document.activeElement?.id;
  render();
  if (focused) document.getElementById(focused)?.focus();
}

function choiceGroup(name, children) {
  return make("div", { class: "group", role: "group", "aria-label": name }, make("span", { class: "name", "aria-hidden": "true" }, name), ...children);
}

function options(id, name, list, chosen, act) {
  const select = make("select", { id, "aria-label": name }, ...list.map(([value, text]) => make("option", { value }, text)));
  select.value = chosen;
  select.addEventListener("change", () => pick(() => act(select.value)));
  return select;
}

function controls() {
  const groups = [], methods = unique(here().map(run => run.label)), seeds = seedsHere();
  if (allScenarios().length > 1)
    groups.push(choiceGroup("Scenario", allScenarios().length <= 4
      ? allScenarios().map((scenario, i) => make("button", { id: `scenario-${i}`, "aria-pressed": String(scenario === view.scenario), on: { click: () => pick(() => { view.scenario = scenario; view.zoom = null; }) } }, scenario))
      : [options("scenario", "Scenario", allScenarios().map(s => [s, s]), view.scenario, value => { view.scenario = value; view.zoom = null; })]));
  if (methods.length > 1)
    groups.push(choiceGroup("Methods", methods.map(label => make("button", {
      id: `method-${allMethods().indexOf(label)}`, class: "method", "aria-pressed": String(!view.off.has(label)), on: { click: () => pick(() => toggle(label, methods)) },
    }, lineSwatch(label), label))));
  if (seeds.length > 1)
    groups.push(choiceGroup("Seed", [options("seed", "Seed", [["all", `mean of ${seeds.length}`], ...seeds.map(seed => [String(seed), String(seed)])], String(view.seed), value => { view.seed = value === "all" ? "all" : Number(value); })]));
  if (shown().length > 1)
    groups.push(choiceGroup("Look closely at", [options("focus", "Look closely at", shown().map(run => [run.id, nameOf(run)]), focusRun().id, value => { view.focus = value; })]));
  if (view.zoom)
    groups.push(make("button", { id: "whole", on: { click: () => zoomTo(null) } }, `Rounds ${view.zoom[0]}–${view.zoom[1]}  ✕`));
  const nav = document.getElementById("controls");
  nav.hidden = !groups.length;
  nav.replaceChildren(...groups);
}

// The last method that is shown stays: an empty plot tells nothing.
function toggle(label, methods) {
  if (!view.off.has(label) && methods.filter(name => !view.off.has(name)).length === 1) return;
  view.off.has(label) ? view.off.delete(label) : view.off.add(label);
}

function lineSwatch(label) {
  const { colour, dash } = colourOf(label), box = svg("svg", { width: 22, height: 8, class: "swatch", "aria-hidden": "true" });
  box.append(svg("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: colour, "stroke-width": 3, "stroke-dasharray": dash || "none" }));
  return box;
}

function render() {
  hideTip();
  const main = document.getElementById("main");
  const open = [...main.querySelectorAll("details")].map(one => one.open);
  const begun = runs.some(run => run.rounds.length), [first, ...more] = (begun ? story.headline : []).map(text => text.replaceAll(" %", "\u00a0%"));
  document.getElementById("headline").textContent = first || "Waiting for the first round.";
  document.getElementById("more-headlines").replaceChildren(...more.slice(0, 5).map(text => make("li", {}, text)));
  document.title = begun && story.headline[0] ? `${story.headline[0]} · Holdfast` : "Holdfast";
  if (!runs.length || !shown().length) { main.replaceChildren(); return; }
  if (view.zoom && view.zoom[0] >= fullRange()[1]) view.zoom = null;
  controls();
  const run = focusRun();
  main.replaceChildren(...[nowSection(run), metricSection(run), summarySection(), sitesSection(run), curvesSection(run), forgettingSection(run), trustSection(run), digestSection(run), costSection(run), notesSection(run), tableSection(run)].filter(Boolean));
  [...main.querySelectorAll("details")].forEach((one, i) => { one.open = Boolean(open[i]); });
  draw();
}

// Where a table is wider than the screen, say so until its end is in sight.
function cues() {
  for (const box of document.querySelectorAll(".scroll")) {
    const look = () => box.parentElement.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
    box.onscroll = look;
    look();
  }
}

function draw() {
  cues();
  for (const one of document.querySelectorAll("figure")) one.draw?.();
}

function status() {
  const place = document.getElementById("status"), going = story.live && runs.some(run => !run.finished);
  const run = runs.find(one => !one.finished) || runs[runs.length - 1];
  place.className = going ? "going" : "";
  place.textContent = going ? `live: round ${run.rounds.length} of ${run.planned}` : story.live && run ? "finished" : "";
  if (going && run.stopped) {
    place.className = "";
    place.textContent = `stopped after round ${run.rounds.length} of ${run.planned}; holdfast resume goes on`;
  }
  const unfinished = runs.filter(one => !one.finished).length;
  if (!story.live && unfinished) place.textContent = unfinished === runs.length ? "not finished" : `${unfinished} of ${runs.length} runs are not finished`;
}

function show(payload) {
  const focused = document.activeElement?.id;
  take(payload);
  status();
  render();
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function listen() {
  const source = new EventSource("events");
  source.addEventListener("payload", event => show(JSON.parse(event.data)));
  source.addEventListener("trouble", event => { document.getElementById("status").textContent = JSON.parse(event.data); });
  source.addEventListener("end", () => source.close());
  source.addEventListener("error", () => {
    const place = document.getElementById("status");
    place.className = "";
    if (runs.some(run => !run.finished) || !runs.length) place.textContent = "the watching process does not answer; trying again";
  });
}

document.getElementById("footer").textContent = "Drag over a plot to zoom, double-click to see all again. With the keyboard: Tab to a plot, arrows to walk, + and − to zoom.";
show(JSON.parse(document.getElementById("data").textContent));
document.addEventListener("toggle", () => requestAnimationFrame(cues), true);
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; render(); } });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
if (story.live) listen();
