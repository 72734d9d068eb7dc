"""The console's page: plain HTML with forms, readable without its script, which only says when there is news."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.console.markup import Html, el, join
from holdfast.console.site_state import Asked, Budget, SiteView, page_name
from holdfast.core.cards import curve
from holdfast.data.metrics import Measure
from holdfast.flower.deploy.approval import LONGEST, Case, Proposal, pending
from holdfast.report.words import pretty
from holdfast.runs.experiment import Experiment, plain

STATIC = Path(__file__).parent / "static"
STYLE = (STATIC / "console.css").read_text(encoding="utf-8")
SCRIPT = (STATIC / "console.js").read_text(encoding="utf-8")
TOLD = 30  # entries of a ledger that are shown, the newest


def sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY = (
    f"default-src 'none'; style-src 'sha256-{sha256(STYLE)}'; script-src 'sha256-{sha256(SCRIPT)}'; img-src data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def site_page(view: SiteView, by: str, signs: bool, said: tuple[bool, str] | None, mark: str, made: set[str]) -> str:
    """The whole page; `signs`: the console was given a key; `made`: privacy pages that are there or being made."""
    waiting = [(one, case) for one in view.asked for case in waits(one, view)]
    title = f"{f'({len(waiting)}) ' if waiting else ''}{view.name} · Holdfast"
    body = join(
        el("a", "Skip to what waits", class_="skip", href="#main"),
        header(view, len(waiting), by),
        el("p", said[1], id="said", class_="good" if said[0] else "bad", role="status" if said[0] else "alert")
        if said
        else None,
        el("p", id="news", role="status"),
        el(
            "main",
            el("p", view.trouble, class_="bad", role="alert") if view.trouble else None,
            waiting_section(view, waiting, by, signs, made),
            budget_section(view),
            asked_section(view, [one for one in view.asked if not waits(one, view)], by, made),
            errors_section(view.asked),
            id="main",
            tabindex="-1",
        ),
        el("script", Html(SCRIPT)),
    )
    head = join(
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("link", rel="icon", href="data:,"),
        el("title", title),
        el("style", Html(STYLE)),
    )
    return "<!doctype html>" + el("html", el("head", head), el("body", body, data_mark=mark), lang="en") + "\n"


def waits(one: Asked, view: SiteView) -> list[Case]:
    """The proposals of an experiment that people here are asked about now."""
    if one.withdrawn is not None or not view.policy.approvals:
        return []
    now = [case for case in one.cases if case.proposal.policy == view.policy_sha256]
    return pending(now, view.policy.approvals)


def header(view: SiteView, waiting: int, by: str) -> Html:
    asks = {0: "Nothing waits for you.", 1: "One experiment waits for your approval."}
    headline = asks.get(waiting, f"{waiting} experiments wait for your approval.")
    if view.paused is None:
        note = el("p", "This site answers what its policy and its people allow.", class_="quiet")
        button = form("pause", by, el("button", "Pause this site"))
    else:
        who = f"by {view.paused.get('by', 'somebody')}, {when(view.paused.get('when'))}"
        headline = f"Paused {who}. {headline}"
        note = el("p", "Nothing is answered; to the others this site is away.", class_="quiet")
        button = form("resume", None, el("button", "Go on", class_="main"))
    return el("header", el("p", f"Holdfast · site {view.name}", class_="mark"), el("h1", headline), note, button)


def form(action: str, by: str | None, *content: Html, hidden: Mapping[str, str] | None = None) -> Html:
    """A form; `by` decides, and where that is empty the name is asked for; None: nobody needs to be named."""
    told = [el("input", type="hidden", name=name, value=value) for name, value in (hidden or {}).items()]
    who = None
    if by == "":
        box = el("input", name="by", required=True, maxlength=LONGEST, autocomplete="off", spellcheck="false")
        who = el("label", "Your name ", box)
    return el("form", *told, who, *content, method="post", action=action)


def waiting_section(
    view: SiteView, waiting: Sequence[tuple[Asked, Case]], by: str, signs: bool, made: set[str]
) -> Html | None:
    if not waiting:
        return None
    cards = [waiting_card(view, one, case, by, signs, made) for one, case in waiting]
    return el("section", el("h2", "Waiting for approval", id="waiting"), *cards, aria_labelledby="waiting")


def waiting_card(view: SiteView, one: Asked, case: Case, by: str, signs: bool, made: set[str]) -> Html:
    needed, have = view.policy.approvals, len(case.approved)
    people = f"{have} of {needed} {'approval' if needed == 1 else 'approvals'}"
    people += f": {', '.join(case.approved)}" if case.approved else ""
    facts = [("asked since", when(case.since)), ("so far", people), *asks_for(one)]
    facts.append(("what is approved", f"experiment {one.mark}, code {case.proposal.code[:8]}, this policy"))
    if view.policy.approvers is not None and not signs:
        note = "Only signed words count here: start the console with --by NAME and --key FILE."
        decide = el("p", note, class_="quiet")
    else:
        both = [
            el("button", "Approve", class_="main", formaction="approve"),
            el("button", "Refuse", formaction="refuse"),
        ]
        decide = form("approve", by, el("span", *both, class_="buttons"), hidden=hidden_of(case.proposal))
    return el(
        "article",
        el("h3", heading(one)),
        table("What it asks for", ("", ""), facts, heads=False),
        privacy_words(case.proposal, made),
        decide,
    )


def privacy_words(proposal: Proposal, made: set[str]) -> Html:
    """The link to the privacy page, or the button that makes it."""
    name = page_name(proposal)
    if name in made:
        read = el("a", "Read what leaves this house, and what that promises", href=f"page/{name}")
        return el("p", read, " (the privacy page; its SHA-256 is kept with your approval)")
    if f"{name} is being made" in made:
        return el("p", "The privacy page is being made: this takes up to a minute.")
    button = el("button", "Make the privacy page")
    note = " What leaves, what that promises, and what attacks make of it. Nothing is sent."
    return form("page", None, button, el("span", note, class_="quiet"), hidden=hidden_of(proposal))


def hidden_of(proposal: Proposal) -> dict[str, str]:
    return {"experiment": proposal.experiment, "code": proposal.code, "policy": proposal.policy}


def heading(one: Asked) -> str:
    if one.experiment is None:
        return one.about or f"Experiment {one.mark}"
    return f"{pretty(one.experiment)} on {Path(one.experiment.task).name}"


def asks_for(one: Asked) -> list[tuple[str, object]]:
    """The experiment in a few lines, and all that it says which is not as usual."""
    e = one.experiment
    if e is None:
        return [("about", one.trouble or one.about or "its file is not here")]
    noise = "without noise" if e.protect.name == "none" else f"protected by {e.protect}"
    leaves = ["one digest, and no updates"] if e.algorithm.name == "oneshot" else [f"updates of the model, {noise}"]
    leaves += [f"a digest of its records ({e.absence})"] if e.absence.name not in ("none", "client-memory") else []
    usual = Experiment()
    hide = ("task", "data", "test", "modules", "rounds", "clients", "names", "algorithm", "absence", "protect", "given")
    other = [f"{k} = {v}" for k, v in e.as_json().items() if k not in hide and v != plain(getattr(usual, k))]
    return [
        ("rounds", f"{e.rounds}, with {e.clients} sites" + (f" ({', '.join(e.names)})" if e.names else "")),
        ("leaves", "; ".join(leaves) + "; how well the model does here"),
        *([("settings", ", ".join(other))] if other else []),
    ]


def budget_section(view: SiteView) -> Html:
    """What left without noise, which no ledger counts, and what the ledger counts."""
    budget = view.budget
    plainly = [one for one in view.asked if one.trained and one.experiment and one.experiment.protect.name == "none"]
    noise = "of the model, without noise; no epsilon bounds what they tell of a record."
    bare = [el("p", f"{heading(one)}: {count(one.trained, 'update')} {noise}") for one in plainly]
    if budget.trouble:
        content = el("p", budget.trouble, class_="bad")
    elif not budget.entries:
        allowed = "" if math.isinf(budget.allowed) else f" The policy allows epsilon {budget.allowed:g}."
        what = "Nothing has left with noise" if bare else "Nothing has left"
        content = el("p", f"{what}; the ledger is empty.{allowed}")
    else:
        rows = [
            (e.what, when(e.when), f"{e.claim.epsilon_total:.3g}".replace("inf", "infinite"))
            for e in reversed(budget.entries[-TOLD:])
        ]
        left = len(budget.entries) - len(rows)
        more = f", the last {len(rows)} of {len(budget.entries)}" if left else ""
        entries = table(f"Releases{more}", ("what", "when", "epsilon"), rows)
        content = join(bar(budget), el("details", el("summary", count(len(budget.entries), "release")), entries))
    return el("section", el("h2", "What has left so far", id="left"), *bare, content, aria_labelledby="left")


def bar(budget: Budget) -> Html:
    """What is spent as a part of what is allowed, in a picture and in words."""
    spent, allowed = budget.spent, budget.allowed
    if math.isinf(spent):
        more = f"the policy's epsilon {allowed:g} lets nothing more leave that is counted"
        limit = "the policy sets no limit" if math.isinf(allowed) else more
        return el("p", f"Something has left without noise, so no epsilon bounds what it tells of a record; {limit}.")
    if math.isinf(allowed):
        return el("p", f"epsilon {spent:.3g} is spent at delta {budget.delta:g}; the policy sets no limit.")
    share = min(1.0, spent / allowed)
    words = f"epsilon {spent:.3g} of {allowed:g} is spent, {max(0.0, allowed - spent):.3g} is left"
    words = f"{words} (delta {budget.delta:g}; all experiments together)"
    parts = [el("rect", width=100, height=6, rx=1, class_="all")]
    parts.append(
        el("rect", width=f"{100 * share:.1f}", height=6, rx=1, class_="spent high" if share > 0.8 else "spent")
    )
    picture = el(
        "svg", *parts, viewBox="0 0 100 6", preserveAspectRatio="none", role="img", aria_label=words, class_="bar"
    )
    return join(picture, el("p", f"{words}."))


def asked_section(view: SiteView, asked: Sequence[Asked], by: str, made: set[str]) -> Html | None:
    if view.asked and not asked:
        return None
    content = [asked_card(view, one, by, made) for one in asked]
    content = content or [el("p", "No experiment has asked this site for anything yet.")]
    return el("section", el("h2", "Experiments", id="experiments"), *content, aria_labelledby="experiments")


def asked_card(view: SiteView, one: Asked, by: str, made: set[str]) -> Html:
    most = "" if view.policy.max_rounds is None else f" of at most {view.policy.max_rounds}"
    facts: list[tuple[str, object]] = [
        ("state", state_of(view, one)),
        ("asked since", when(one.since)),
        ("trained here", f"{count(one.trained, 'time')}{most}"),
        *asks_for(one),
    ]
    parts = [el("h3", heading(one)), table("Experiment", ("", ""), facts, heads=False), metrics_of(one)]
    parts += [privacy_words(case.proposal, made) for case in one.cases if case.proposal.policy == view.policy_sha256][
        -1:
    ]
    if one.refusals:
        rows = [(job, why, f"{times}, last in round {round}") for job, why, times, round in one.refusals[:20]]
        parts.append(table("Not answered", ("question", "because", "times"), rows))
    if one.withdrawn is None:
        parts.append(withdraw_form(one, by))
    return el("article", *parts)


def state_of(view: SiteView, one: Asked) -> str:
    if one.withdrawn is not None:
        return f"this site has withdrawn ({one.withdrawn.get('by', '')}, {when(one.withdrawn.get('when'))})"
    if view.policy.experiments is not None and not any(f.startswith(one.mark) for f in view.policy.experiments):
        return "refused: the policy's `experiments` does not name it"
    if not view.policy.approvals:
        return "takes part: the policy asks for no approval"
    now = [case for case in one.cases if case.proposal.policy == view.policy_sha256]
    if waits(one, view):
        return "waits for approval"
    if refused := [case.refused for case in now if case.refused and not case.approved]:
        return f"refused by {refused[-1]}"
    approved = [", ".join(case.approved) for case in now if case.approved]
    return f"takes part: approved by {approved[-1]}" if approved else "has to ask again: the policy has changed"


def metrics_of(one: Asked) -> Html | None:
    """The model on the site's own records: the leading metric as a line, the last values as text."""
    told = [line for line in one.metrics if isinstance(line.get("metrics"), dict) and line["metrics"]]
    if not told:
        return None
    first = next(iter(told[0]["metrics"]))
    values = [v for line in told if isinstance(v := line["metrics"].get(first), int | float) and math.isfinite(v)]
    last = told[-1]
    text = last["text"] if isinstance(last.get("text"), dict) else last["metrics"]
    label = f"{first} on this site's own records over {len(values)} tests, from {values[0]:.3g} to {values[-1]:.3g}"
    words = ", ".join(f"{Measure(name).words} {value}" for name, value in text.items())
    return join(
        el("h4", "How well the model does on this site's own records"),
        Html(curve(values, label)) if len(values) > 1 else None,
        el(
            "p",
            f"After round {last.get('round')}: {words} ({last.get('samples')} records; as it was told the moderator).",
        ),
    )


def withdraw_form(one: Asked, by: str) -> Html:
    sure = el(
        "label", el("input", type="checkbox", name="sure", value="yes", required=True), " I know that this is for good"
    )
    words = "This site answers nothing of this experiment any more, and the moderator is told to delete its digest."
    content = form("withdraw", by, sure, el("button", "Withdraw", class_="danger"), hidden={"mark": one.mark})
    return el("details", el("summary", "Withdraw from this experiment"), el("p", words), content)


def errors_section(asked: Sequence[Asked]) -> Html | None:
    found = [one for one in asked if one.errors]
    if not found:
        return None
    note = "In full, and on this machine alone: the moderator is told a code and its fixed sentence."
    logs = [
        el(
            "details",
            el("summary", heading(one)),
            el("pre", one.errors, tabindex=0, role="region", aria_label="Errors"),
        )
        for one in found
    ]
    return el(
        "section", el("h2", "Errors", id="errors"), el("p", note, class_="quiet"), *logs, aria_labelledby="errors"
    )


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[object]], heads: bool = True) -> Html:
    """A table that scrolls by itself where the screen is narrow; the first cell of a row is its head."""
    cells = [el("tr", el("th", row[0], scope="row"), *(el("td", cell) for cell in row[1:])) for row in rows]
    top = el("thead", el("tr", *(el("th", word, scope="col") for word in head))) if heads else None
    inside = el("table", el("caption", caption, class_=None if heads else "unseen"), top, el("tbody", *cells))
    return el(
        "div",
        inside,
        class_="scroll",
        tabindex=0 if heads else None,
        role="region" if heads else None,
        aria_label=caption if heads else None,
    )


def count(number: int, word: str) -> str:
    """
    >>> count(1, "release"), count(2, "release")
    ('1 release', '2 releases')
    """
    return f"{number} {word}{'' if number == 1 else 's'}"


def when(text: object) -> str:
    """A time as people read it.

    >>> when("2031-05-04T10:20:30+00:00"), when(None)
    ('2031-05-04 10:20 UTC', 'at a time that is not known')
    """
    if not isinstance(text, str) or len(text) < 16:
        return "at a time that is not known"
    return f"{text[:10]} {text[11:16]} UTC"
