"""A site's dry run: its data, its policy, the connection, one local step, and what would leave; nothing is sent.

The step is taken in a folder of its own that is thrown away, so neither the site's book nor its ledger has an entry.
"""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.client import EVALUATE, EvaluateRequest
from holdfast.core.errors import HoldfastError
from holdfast.core.names import plural
from holdfast.core.types import Message, Tensors
from holdfast.data.named import own_records
from holdfast.data.tables.check import check_table
from holdfast.data.tables.schema import read_schema
from holdfast.flower.deploy.policy import check_experiment, read_site_policy
from holdfast.flower.deploy.site import Own, Site, refuse_other_schema
from holdfast.flower.engine.codec import Letter
from holdfast.models.scaling import scaled_columns
from holdfast.round import train_messages
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, is_description
from holdfast.runs.plan import Plan

PATIENCE = 5.0  # seconds for the SuperLink to answer


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; a warning does not keep the site from taking part."""

    what: str
    good: bool
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Wish:
    """What a site's operator says."""

    name: str
    experiment: Experiment
    table: Path | None = None
    schema: Path | None = None
    records: Path | None = None
    policy: Path | None = None
    data: Path | None = None
    superlink: str | None = None
    ca: Path | None = None

    @property
    def config(self) -> dict[str, str]:
        named = ("table", "schema", "records", "policy", "data")
        paths: dict[str, Path | None] = {key: getattr(self, key) for key in named}
        return {"site": self.name, **{key: str(path.resolve()) for key, path in paths.items() if path is not None}}

    @property
    def client(self) -> int:
        """Which client of the experiment the site would be."""
        names = self.experiment.names or ()
        return names.index(self.name) if self.name in names else 0


def rehearse_site(wish: Wish) -> Iterator[Finding]:
    """What a dry run finds, one thing after the other; the step is left out where the data do not fit."""
    checks: list[tuple[str, Callable[[Wish], list[str]]]] = [("policy", check_policy), ("connection", check_link)]
    if wish.table is not None:
        checks.insert(0, ("data", check_data))
    elif wish.records is not None:
        checks.insert(0, ("data", check_records))
    fits = True
    for what, look in checks:
        finding = attempt(what, look, wish)
        fits &= finding.good or what == "connection"
        yield finding
    if fits:
        yield attempt("one step", take_step, wish)


def attempt(what: str, look: Callable[[Wish], list[str]], wish: Wish) -> Finding:
    try:
        return Finding(what, True, tuple(look(wish)))
    except HoldfastError as error:
        return Finding(what, False, (str(error),))


def check_data(wish: Wish) -> list[str]:
    """The table held against the schema that the experiment goes by."""
    assert wish.table is not None
    schema = read_schema(Path(wish.experiment.task))
    if wish.schema is not None:
        refuse_other_schema(read_schema(wish.schema), schema)
    report = check_table(replace(schema, site=None), wish.table)
    if not report.fits:
        raise HoldfastError(" ".join(report.problems[:3]))
    return [
        f"{plural(report.records, 'record')} fit {schema.name}, version {schema.version}.",
        *(f"Look at this: {warning}" for warning in report.warnings),
    ]


def check_records(wish: Wish) -> list[str]:
    """The images, series or texts held against the description that the experiment goes by."""
    assert wish.records is not None
    task = wish.experiment.task
    if not is_description(task):
        raise HoldfastError(f"{task} describes no images, series or texts; say --table for a table.")
    records = own_records(task, wish.records)
    shape = " x ".join(map(str, records.inputs[0].shape[1:]))
    classes = f" in {len(records.labels.unique())} of the classes" if records.labels.ndim == 1 else ""
    return [f"{len(records):,} records{classes}, each of {shape} values, fit {task}."]


def check_policy(wish: Wish) -> list[str]:
    if wish.policy is None:
        return ["There is none: the experiment is taken as it is, with at least 50 records behind each answer."]
    policy = read_site_policy(wish.policy)
    with tempfile.TemporaryDirectory() as folder:
        site = Site(wish.experiment, {**wish.config, "folder": folder})
        check_experiment(policy, site.fingerprint)
    rounds = "any number of rounds" if policy.max_rounds is None else f"at most {policy.max_rounds} rounds"
    named = "it names this experiment" if policy.experiments is not None else "any experiment may ask"
    digests = "may" if policy.digest else "may not"
    lines = [f"{named}; {rounds}; at least {policy.min_records} records for each answer; digests {digests} leave."]
    if policy.approvals:
        people = "1 person has" if policy.approvals == 1 else f"{policy.approvals} people have"
        lines.append(f"{people} to approve it before the first job: `holdfast site approve`.")
    return lines


def check_link(wish: Wish) -> list[str]:
    """Whether the SuperLink listens and, with its certificate, is who it says."""
    if wish.superlink is None:
        return ["Not tried: say --superlink HOST:PORT."]
    host, _, port = wish.superlink.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PATIENCE) as line:
            if wish.ca is None:
                return [f"{wish.superlink} listens; it was not asked for a certificate (--ca)."]
            trusted = ssl.create_default_context(cafile=str(wish.ca))
            with trusted.wrap_socket(line, server_hostname=host.strip("[]")):
                return [f"{wish.superlink} listens, and its certificate is one of {wish.ca.name}'s."]
    except ssl.SSLError as error:
        raise HoldfastError(
            f"{wish.superlink} has no certificate that {wish.ca} vouches for ({error.reason})."
        ) from None
    except OSError as error:
        raise HoldfastError(f"{wish.superlink} does not answer ({error.strerror or error}).") from None


def take_step(wish: Wish) -> list[str]:
    """One training and one evaluation as the moderator would ask for them in round 1, and what they would send."""
    with tempfile.TemporaryDirectory() as folder:
        site = Site(wish.experiment, {**wish.config, "folder": folder})
        away = wish.table is not None or wish.records is not None
        plan = make_plan(replace(site.experiment, data=None, test=None) if away else site.experiment)
        own = site.own(wish.client, None)
        train = train_messages(plan.first_state(), [wish.client], plan.method)[0]
        said = ask(site, own, train)
        lines = [
            f"trained on {len(own.client.train):,} records in {said.seconds:.1f} s; "
            f"{len(own.client.validation):,} are kept for validation.",
            "What would leave in each round:",
            *sizes(said.tensors, site.experiment),
            f"  as numbers: {', '.join(sorted(said.scalars))}",
        ]
        if (columns := scaled_columns(own.client.model)) is not None:
            lines.append(f"  once, before round 1: {columns.width_of_sums} sums of {len(columns.numbers)} columns")
        try:
            told = ask(site, own, evaluation(plan, wish.client))
            lines.append(f"  at each evaluation, sums of: {', '.join(told.scalars['metrics'])}")
        except HoldfastError as error:
            lines.append(f"  at an evaluation nothing: {error}")
        return lines


def ask(site: Site, own: Own, message: Message) -> Letter:
    """The site's answer to a message, past all of its checks."""
    letter = Letter(
        message.client, message.round, message.job, message.tensors, message.scalars, experiment=site.fingerprint
    )
    site.check(letter, rehearsed=True)
    return site.perform(own, letter)


def evaluation(plan: Plan, client: int) -> Message:
    state, method = plan.first_state(), plan.method
    asked = EvaluateRequest(**method.shared(state.model, state.buffers), accepted=method.recalls(state, client))
    return EVALUATE.message(client, plan.experiment.evaluate_every - 1, asked)


def sizes(tensors: Tensors, experiment: Experiment) -> list[str]:
    """What the tensors of an answer are, in a line for each group."""
    groups: dict[str, list[int]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(name.partition("/")[0], []).append(tensor.numel() * tensor.element_size())
    noise = "without noise" if experiment.protect.name == "none" else f"protected by {experiment.protect}"
    words = {
        "delta": f"the change of the model's weights, {noise}",
        "buffers": "running statistics",
        "digest": "the digest, once",
    }
    return [f"  {words.get(group, group)}: {sum(held) / 1000:,.1f} kB" for group, held in groups.items()]
