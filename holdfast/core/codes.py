"""A stable code for each sentence that an error says, such as HF1203.

The first two digits are the family (where the error arose), the last two the sentence; 00 is any other sentence of the
family. `codes.txt` holds the sentences, `{}` where a value stands: codes are given there once and for all by
`python -m holdfast.cli.codes`, which keeps the code of a sentence that was reworded and never gives one twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

REGISTRY = Path(__file__).with_name("codes.txt")
GAP = "{}"


@dataclass(frozen=True)
class Family:
    """Errors that arise in one part of the house; the longest prefix of a module's name decides."""

    number: int
    title: str
    cause: str
    cure: str
    modules: tuple[str, ...] = ()


FAMILIES = (
    Family(
        10,
        "The command line",
        "The words of a command do not go together, or name a file that is not there.",
        "Read `--help` of the command; the sentence names the word.",
        ("cli",),
    ),
    Family(
        11,
        "The experiment's file",
        "A key or choice is unknown, of the wrong type or out of bounds, or a module cannot be imported.",
        "Change the key that the sentence names; `holdfast keys` lists all, `holdfast check` tries the file.",
        ("runs.experiment", "runs.keys", "runs.presets", "core.config", "core.tables", "core.modules", "core.names"),
    ),
    Family(
        12,
        "Tables and schemas",
        "A table does not follow its schema, or the schema contradicts itself.",
        "`holdfast data check` says which rows and columns; correct the table, or agree on another schema.",
        ("data.tables", "core.rows"),
    ),
    Family(
        13,
        "Files of images, series, texts and arrays",
        "A file or folder of samples cannot be read, or is not what its description says.",
        "Correct the file or the description that the sentence names.",
        ("data.sources",),
    ),
    Family(
        14,
        "Tasks, targets and partitions",
        "The data do not suit what is to be learnt, measured or dealt out.",
        "Choose another kind, metric, loss or partition; `holdfast partition` shows who would get what.",
        ("data", "tasks"),
    ),
    Family(
        15,
        "Networks and encoders",
        "A network or an encoder does not fit the samples, or its file is missing or another one.",
        "Choose one that fits (`holdfast check` says which `auto` takes), or name the file.",
        ("models", "encoders"),
    ),
    Family(
        16,
        "Learning",
        "Algorithm, optimiser, schedule or selection cannot do what was asked of them together.",
        "Change the choice that the sentence names; the method's page says what it needs.",
        ("algorithms", "learning", "selection", "method", "context", "jobs", "round", "scenarios", "absence"),
    ),
    Family(
        17,
        "Trust and attacks",
        "A rule cannot judge these members, or a simulated attack does not suit the task.",
        "Choose another rule or attack, or more members; docs/hostile.md compares them.",
        ("trust", "attacks", "rivals", "attack_search"),
    ),
    Family(
        18,
        "Runs and their folders",
        "A run cannot start, go on or be saved: its parts do not go together, a file is damaged, or the disk is full.",
        "Do what the sentence says; nothing that was saved before is lost, and `holdfast resume` goes on.",
        ("runs", "play", "record", "engines", "core", "one_exchange", "one_total"),
    ),
    Family(
        19,
        "Models by post",
        "Digests' files do not go together, or no head can be made of them.",
        "Compare the files with `holdfast digest show`; make the odd one again.",
        ("by_post", "heads"),
    ),
    Family(
        20,
        "Digests",
        "A digest cannot be made with these options, or of these records.",
        "Make it again with the options that the sentence names.",
        ("digests",),
    ),
    Family(
        21,
        "Privacy",
        "A policy does not allow it, the budget is used up, or policy or ledger is missing or damaged.",
        "Nothing was released. Change the policy on purpose, or put the newest ledger back: docs/privacy-policy.md.",
        ("privacy",),
    ),
    Family(
        22,
        "Secure sums",
        "A step of a secure sum was not what a member or the moderator can go along with.",
        "Look for the member that the sentence names; nobody's own sum was seen.",
        ("secure_sum",),
    ),
    Family(
        23,
        "Privacy reports and plans",
        "What is to be examined is not there, or cannot be attacked in this way.",
        "Name a digest's file, a run's folder or an experiment.",
        ("audit",),
    ),
    Family(
        24,
        "Reports, live pages and the console",
        "A run's folder cannot be shown, or a page cannot be served.",
        "Name the folder of a run; for a page choose another `--port`.",
        ("report", "console"),
    ),
    Family(
        25,
        "Reproduction",
        "A published table or figure was asked for that is not here.",
        "See docs/papers.md.",
        ("reproduce",),
    ),
    Family(
        26,
        "Putting an experiment together",
        "Its parts do not go together: model, task, encoder, clients, learning, or first weights.",
        "Change one of the two that the sentence names; `holdfast check` tries them without running.",
        (
            *("runs.build", "runs.deal", "runs.choose_learning", "runs.choose_model", "runs.choose_metrics"),
            *("runs.rehearse", "runs.start_weights", "runs.one_message", "runs.early_stopping"),
        ),
    ),
    Family(
        27,
        "Export and prediction",
        "A model cannot be loaded or exported, or new samples do not fit it.",
        "Name a finished run or its model.safetensors; `--modules` where the model has code of its own.",
        ("runs.export", "runs.curves"),
    ),
    Family(
        28,
        "Digests' files and keys",
        "A digest's file or message is damaged, not what it says of itself, or not signed by the key of its owner.",
        "Fetch or make the file again; compare keys with their owner.",
        ("digests.digest", "digests.moment_wire", "digests.origin", "digests.received", "digests.compact"),
    ),
    Family(
        30,
        "The moderator over Flower",
        "A site did not join, a message cannot be read, or the run config is wrong.",
        "Start the sites, install the same app and version on all, correct the run config.",
        ("flower",),
    ),
    Family(
        31,
        "A site over Flower",
        "What a site was started with does not fit, its policy or its people do not allow it, or keys do not match.",
        "`holdfast site check` tries all but sending; what each file is: docs/real-sites.md, docs/site-policy.md.",
        ("flower.deploy",),
    ),
    Family(
        32,
        "Parts for own Flower apps",
        "A strategy or a mod was given what it cannot use.",
        "See docs/flower-apps.md.",
        ("flower.parts",),
    ),
    Family(
        40,
        "A client's work",
        "A client was asked for something that it cannot or may not answer.",
        "Its own log says all of it; others are told a code word and its fixed sentence.",
        ("client",),
    ),
    Family(90, "Everything else", "Something was not as expected.", "Do what the sentence says."),
)


def family_of(module: str) -> Family:
    """The family of a module, whole name.

    >>> [family_of(f"holdfast.{one}").number for one in ("flower.deploy.site", "core.files", "new_room")]
    [31, 18, 90]
    """
    inside = module.removeprefix("holdfast.")
    fitting = [(len(p), f) for f in FAMILIES for p in f.modules if inside == p or inside.startswith(f"{p}.")]
    return max(fitting, key=lambda found: found[0])[1] if fitting and inside != module else FAMILIES[-1]


@lru_cache(maxsize=1)
def registry() -> dict[str, str]:
    """Code -> sentence."""
    lines = REGISTRY.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t", 1) for line in lines if line.startswith("HF"))


def fits(template: str, text: str) -> bool:
    """Whether a text is a template with its gaps filled.

    >>> fits("lr must be {}, got {}.", "lr must be positive, got 0."), fits("lr must be {}.", "lr must be positive")
    (True, False)
    """
    first, *rest = template.split(GAP)
    if not rest:
        return template == text
    if not text.startswith(first) or not text.endswith(rest[-1]) or len(text) < len(first) + len(rest[-1]):
        return False
    at, end = len(first), len(text) - len(rest[-1])
    for piece in rest[:-1]:
        if (found := text.find(piece, at, end)) < 0:
            return False
        at = found + len(piece)
    return True


def code_for(text: str, module: str) -> str:
    """The code of a sentence that was raised in a module: of those that fit, the one that says most itself."""
    family = family_of(module)
    known = [(code, words) for code, words in registry().items() if code.startswith(f"HF{family.number}")]
    fitting = [(len(words.replace(GAP, "")), code) for code, words in known if fits(words, text)]
    return max(fitting)[1] if fitting else f"HF{family.number}00"


def code_of_error(error: BaseException) -> str:
    """The code of an error that was caught: its sentence, and the module that raised it."""
    trace, module = error.__traceback__, ""
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        module = name if name.startswith("holdfast") else module
        trace = trace.tb_next
    return code_for(str(error), module)
