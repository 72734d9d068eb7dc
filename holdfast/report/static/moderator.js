// The moderator's view of a run that goes on: where each site stands now.

const STANDING = {
  there: ["takes part", "there"], suspected: ["takes part, suspected", "suspected"], refused: ["its update was refused", "refused"], away: ["away", "away"],
  approval: ["waits for approval", "suspected"], paused: ["paused by its people", "away"], withdrawn: ["has withdrawn", "away"], unasked: ["not asked yet", "unasked"],
};
function clock(text) {
  if (!/^\d{4}-\d\d-\d\dT\d\d:\d\d/.test(text)) return "a time that is not known";
  const today = new Date().toISOString().slice(0, 10) === text.slice(0, 10);
  return `${today ? "" : `${text.slice(0, 10)} `}${text.slice(11, 16)} UTC`;
}

function nowSection(run) {
  if (!run.now || run.finished) return null;
  const rows = run.now.rows, linked = rows.some(row => row.link), counted = state => rows.filter(row => state.includes(row.state)).length;
  const waiting = rows.filter(row => row.state === "approval").map(row => row.name);
  const there = linked ? rows.filter(row => row.link?.there).length : counted(["there", "suspected", "refused"]);
  const say = `${there} of ${rows.length} sites are ${linked ? "connected" : "there"}.`
    + (waiting.length ? ` Approval is pending at ${waiting.slice(0, 5).join(", ")}${waiting.length > 5 ? ` and ${waiting.length - 5} more` : ""}.` : "")
    + (run.now.turnedAway.length ? ` A node was turned away: ${run.now.turnedAway[0]}.` : "");
  const shownRows = [...rows].sort((a, b) => (a.state === "there") - (b.state === "there")).slice(0, 60);
  const link = row => (row.link ? `${row.link.there ? "connected" : "away"} since ${clock(row.link.since)}` : "–");
  const why = row => (row.suspected ? `suspected ${row.suspected} time${row.suspected === 1 ? "" : "s"}, last in ${row.reason}` : row.why);
  const cells = shownRows.map(row => [
    row.name, make("td", { class: "what" }, make("span", { class: `kind ${STANDING[row.state][1]}` }, STANDING[row.state][0]), make("span", { class: "why" }, why(row))),
    row.since ? `round ${row.since}` : "–", ...(linked ? [link(row)] : []), `${row.taken} of ${run.rounds.length}`,
  ]);
  const caption = rows.length > shownRows.length ? `${shownRows.length} of ${rows.length} sites, first those that need a look` : "Each site";
  return section("now", `Sites now${here().length > 1 ? `, in ${nameOf(run)}` : ""}`, say,
    table(caption, ["site", "what", "since", ...(linked ? ["connection"] : []), "rounds"], cells, ["", "", "since", ...(linked ? [""] : []), "n"]));
}
