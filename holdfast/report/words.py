"""What happened, in words: the headline of a report, and the names of its lines."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from holdfast.core.config import Choice
from holdfast.core.types import not_there
from holdfast.data.metrics import ACCURACY, Measure
from holdfast.record import Record
from holdfast.report.run_data import Story, same_measure
from holdfast.runs.experiment import INDIFFERENT, Experiment

NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fednova": "FedNova",
    "feddyn": "FedDyn",
    "adabest": "AdaBest",
    "scaffold": "SCAFFOLD",
    "lac": "LAC",
    "mime": "Mime",
    "mimelite": "MimeLite",
    "feddig": "FedDig",
    "fedtest": "FedTest",
    "servertest": "server test",
    "krum": "Krum",
    "multikrum": "Multi-Krum",
    "geomedian": "geometric median",
    "trimmed": "trimmed mean",
    "clipping": "centred clipping",
    "normclip": "norm clipping",
    "nnm": "NNM",
    "arc": "ARC",
    "demoa": "DeMoA",
    "bulyan": "Bulyan",
    "fltrust": "FLTrust",
}
KEPT = 0.05  # a method that lost less than this of its best value (points of a share, else relative) kept it
FEW = 100  # records: a metric of fewer says little
CLOSE = 0.005
SITUATION = ("scenario", "attack", "attackers")
NOT_A_DIFFERENCE = ("algorithm", "absence", "trust", "seed", *INDIFFERENT, *SITUATION)


def pretty(experiment: Experiment) -> str:
    """A method's name as people write it.

    >>> pretty(Experiment(absence=Choice("feddig"), algorithm=Choice("fedprox", argument="0.1")))
    'FedProx:0.1 + FedDig'
    """
    parts = []
    for key, usual in (("algorithm", ""), ("absence", "none"), ("trust", "auto")):
        choice: Choice = getattr(experiment, key)
        if choice.name != usual:
            parts.append(NAMES.get(choice.name, choice.name) + str(choice)[len(choice.name) :])
    return " + ".join(parts)


def situation(experiment: Experiment) -> str:
    """Who is away and who is hostile, as one name.

    >>> situation(Experiment(clients=9, attack=Choice("signflip"), attackers=2))
    'signflip x2'
    """
    if not experiment.attackers:
        return str(experiment.scenario)
    hostile = f"{experiment.attack} x{experiment.attackers}"
    return hostile if experiment.scenario.name == "none" else f"{experiment.scenario}, {hostile}"


def labels(stories: Sequence[Story]) -> list[str]:
    """A name for each run's line: its method, and whatever else sets it apart from the other runs."""
    tables = [story.experiment.as_json() for story in stories]
    differing = [
        key for key in (tables[0] if tables else ()) if key not in NOT_A_DIFFERENCE and len(set_of(tables, key)) > 1
    ]
    names = []
    for story in stories:
        own = [f"{key}={plain(getattr(story.experiment, key))}" for key in differing]
        names.append(" · ".join([pretty(story.experiment), *own]))
    places = [(n, situation(s.experiment), s.experiment.seed) for n, s in zip(names, stories, strict=True)]
    return [
        f"{name} · {story.folder.name}" if places.count(place) > 1 else name
        for name, story, place in zip(names, stories, places, strict=True)
    ]


def colour_places(names: Sequence[str]) -> dict[str, int]:
    """Which colour each method's line has, wherever it is drawn: plain FedAvg the first, the others by name.

    >>> colour_places(["SCAFFOLD", "FedAvg", "FedAvg + FedDig"])
    {'FedAvg': 0, 'FedAvg + FedDig': 1, 'SCAFFOLD': 2}
    """
    ordered = sorted({*names}, key=lambda name: (name != "FedAvg", name))
    return {name: place for place, name in enumerate(ordered)}


def set_of(tables: Sequence[dict[str, object]], key: str) -> set[str]:
    return {repr(table.get(key)) for table in tables}


def plain(value: object) -> str:
    return "none" if value is None else str(value).rsplit("/", 1)[-1]


def headline(stories: Sequence[Story]) -> list[str]:
    """One sentence for each scenario, the one in which the methods lie furthest apart first."""
    names, measure = labels(stories), same_measure(stories)
    told: list[tuple[float, str]] = []
    for scenario in dict.fromkeys(situation(story.experiment) for story in stories):
        here = [(n, s) for n, s in zip(names, stories, strict=True) if situation(s.experiment) == scenario]
        tested = [(name, story) for name, story in here if story.final is not None]
        if not tested:
            told.append((-1.0, f"No round has been tested yet under {scenario}."))
            continue
        told.append(sentence(tested, measure))
    return [text for _, text in sorted(told, key=lambda item: -item[0])]


def sentence(here: Sequence[tuple[str, Story]], measure: Measure) -> tuple[float, str]:
    """What a situation did to the methods, and how far they lie apart: the best against plain FedAvg, or the worst."""
    methods: dict[str, list[Story]] = {}
    for name, story in here:
        methods.setdefault(name, []).append(story)
    final = {name: statistics.mean(s.final or 0.0 for s in found) for name, found in methods.items()}
    ordered = sorted(final, key=lambda name: final[name], reverse=not measure.smaller_is_better)
    best, worst = ordered[0], ordered[-1]
    rival = "FedAvg" if "FedAvg" in final and best != "FedAvg" else worst
    when = circumstance([story for _, story in here])
    verbs = {name: verb(methods[name], final[name], measure) for name in (best, rival)}
    text = f"{best} {verbs[best]} {value_text(final[best], measure)} {when}"
    apart = measure.loss(final[best], final[worst])
    if len(final) > 2 and apart < CLOSE:
        text += f"; the other {len(final) - 1} methods lie within half a {'point' if measure.is_share else 'percent'}"
    elif len(final) > 1:
        second = f"{rival} {verbs[rival]}" if verbs[best] != verbs[rival] else rival
        text += f"; {second} {value_text(final[rival], measure)}"
    text += "."
    text += left_behind({name: methods[name] for name in dict.fromkeys((best, rival))}, measure)
    last = methods[best][0].records[-1]
    if lost := lost_classes(last, methods[best][0].class_names):
        text += f" {lost}" if len(final) == 1 else f" With {best}, {lost[0].lower()}{lost[1:]}"
    if here[0][1].experiment.attack.name == "backdoor":
        text += " Accuracy does not show a backdoor: `holdfast compare` and `holdfast run` print how often it works."
    return apart, text


def left_behind(methods: Mapping[str, Sequence[Story]], measure: Measure) -> str:
    """The leading metric on the data of the members who are away at the end: on all clients' it looks rosier."""
    told, few = [], ""
    for name, stories in methods.items():
        found = [value for story in stories if (value := on_absent(story.records)) is not None]
        if len(found) == len(stories):
            own = f"{name} " if len(methods) > 1 else ""
            told.append(f"{own}{value_text(statistics.mean(found), measure)}")
            few = few or from_few(story.records for story in stories)
    return f" On the data of those who are away: {', '.join(told)}{few}." if told else ""


def on_absent(records: Sequence[Record]) -> float | None:
    """The leading metric on the data of those who were away in the last round that was tested."""
    last = next((record for record in reversed(records) if record.measure is not None), None)
    return None if last is None or last.measure is None else last.absent_metrics.get(last.measure.name)


def from_few(runs: Iterable[Sequence[Record]]) -> str:
    """How many records that metric rests on, where they are too few to go by."""
    tested = [next((record for record in reversed(records) if record.absent_metrics), None) for records in runs]
    least = min((sum(r.client_samples.get(c, 0) for c in r.absent) for r in tested if r is not None), default=0)
    return f", from {least} records only" if 0 < least < FEW else ""


def verb(stories: Sequence[Story], final: float, measure: Measure) -> str:
    """reached, kept, or fell or rose to: against the best value on the way, where clients were away."""
    peak = statistics.mean(measure.best(story.history.leading) for story in stories)
    if not any(record.absent or record.refused for story in stories for record in story.records):
        return "reached"
    if measure.loss(peak, final) <= KEPT:
        return "kept"
    return "rose to" if measure.smaller_is_better else "fell to"


def circumstance(stories: Sequence[Story]) -> str:
    """Who was hostile and who was away, in half a sentence."""
    experiment = stories[0].experiment
    if not experiment.attackers:
        return absence_in_words(stories)
    hostile = f"with {experiment.attackers} of {experiment.clients} clients hostile ({experiment.attack})"
    away = any(record.absent for story in stories for record in story.records)
    return f"{hostile}, {absence_in_words(stories)}" if away else hostile


def absence_in_words(stories: Sequence[Story]) -> str:
    """Who left, whose jobs failed and whose updates were refused: three things that are not one another."""
    clients = max(story.experiment.clients for story in stories)
    records = [record for story in stories for record in story.records]
    most = max(len(away) for story in stories for away in known_away(story))
    failed = max(len(record.absent) - len(away_in(record)) for record in records)
    hurt = max(len(record.refused) for record in records)
    last = max(len(known_away(story)[-1]) for story in stories)
    said = []
    if most and last and not any(map(anybody_back, stories)):
        gone = {story.experiment.name_of(client) for story in stories for client in known_away(story)[-1]}
        if last == clients:
            said.append(f"when all {clients} clients left")
        elif len(gone) == 1 and all(story.experiment.names for story in stories):
            said.append(f"when {gone.pop()} left")
        else:
            said.append(f"when {last} of {clients} clients left")
    elif most:
        said.append(f"while up to {most} of {clients} clients were away")
    if failed:
        said.append(f"with the jobs of up to {failed} of {clients} clients failing")
    if hurt:
        said.append(f"with up to {hurt} of {clients} clients' updates refused")
    return " and ".join(said) or "with everybody present"


def away_in(record: Record) -> set[int]:
    """Those who were not there; a client whose job crashed, or whose answer was refused, was."""
    return {client for client, why in record.absent.items() if not_there(why)}


def anybody_back(story: Story) -> bool:
    """Whether a client that was away came back."""
    return any(before - after for before, after in pairwise(known_away(story)))


def lost_classes(record: Record, names: Sequence[str]) -> str:
    """A sentence that names the classes of which the model gets none right; empty if there is none.

    >>> from types import SimpleNamespace
    >>> lost_classes(SimpleNamespace(class_metrics={"accuracy": [0.0, None, 0.7]}), ["coat", "bag", "shirt"])
    'Class coat is at 0 %.'
    """
    lost = [c for c, accuracy in enumerate(record.class_metrics.get(ACCURACY.name, ())) if accuracy == 0]
    if not lost:
        return ""
    told = [names[c] if c < len(names) else str(c) for c in lost]
    return f"Classes {', '.join(told)} are at 0 %." if len(told) > 1 else f"Class {told[0]} is at 0 %."


def known_away(story: Story) -> list[set[int]]:
    """After each round, the clients that did not answer when they were last asked."""
    found: list[set[int]] = []
    for record in story.records:
        before = found[-1] if found else set()
        found.append({*away_in(record), *(client for client in before if not record.was_asked(client))})
    return found


def value_text(value: float, measure: Measure) -> str:
    """The value of a leading metric in a sentence; plain numbers are named, percentages need not be.

    >>> value_text(0.8214, ACCURACY), value_text(1.5, Measure("rmse", "mm"))
    ('82.1 %', 'RMSE 1.5 mm')
    """
    return percent(value) if measure == ACCURACY else measure.said(value)


def percent(value: float) -> str:
    """
    >>> percent(0.8214)
    '82.1 %'
    """
    return f"{100 * value:.1f} %"
