"""A site as a Flower ClientApp: the same perform() as everywhere, with the site's memory and policy on its own disk.

What the node's operator says in `--node-config`:

    site          its name, as the moderator knows it (or partition-id: site-0, site-1, ...)
    folder        where it keeps its memory, its token and its book of what it was asked
    policy        a TOML file of what may be asked of it (optional)
    signing-key   its own Ed25519 key, with which it signs its updates, and its part of secure sums (optional)
    data          folder of the task's files here, in place of the experiment's (optional)
    table         the site's own table, of an experiment whose task is a schema
    records       the site's own images, series or texts, of an experiment whose task is a description
    schema        the site's own copy of that schema, which must say the same as the experiment's (optional)
    device        where its network computes, in place of the experiment's: cpu, cuda:1, ... (optional)
    max-bytes     the largest message it takes (optional)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.app import Message as Packet
from flwr.clientapp import ClientApp

from holdfast.client import DIGEST, SECURE_SUM, SECURE_TRAIN, TRAIN, Client, check_open, perform
from holdfast.client.client import policy_of
from holdfast.core.errors import NOT_DONE, HoldfastError
from holdfast.core.failures import ABOUT_THE_QUESTION, Refusal, append, code_of, full_text
from holdfast.core.randomness import rng
from holdfast.core.types import Message, Tensors, pack
from holdfast.data.named import own_records, reads_data
from holdfast.data.natural import split_by
from holdfast.data.tables.reader import sha256_of
from holdfast.data.tables.schema import Schema, read_schema
from holdfast.data.tables.source import own_samples
from holdfast.data.task import Samples, Task
from holdfast.digests.release import excuse
from holdfast.flower.deploy.approval import Proposal, check_approved, proposal_of
from holdfast.flower.deploy.home import PEOPLE, check_paused, note_asked, note_metrics, now
from holdfast.flower.deploy.policy import (
    SitePolicy,
    bind_client,
    carry_privacy,
    check_experiment,
    check_withdrawn,
    draw_token,
    fingerprint_of,
    read_site_policy,
)
from holdfast.flower.deploy.questions import WORD, Book, check_question, check_records
from holdfast.flower.deploy.signing import base_of, check_relayed, keyring_from, sign_update
from holdfast.flower.engine.codec import BOUND, Letter, as_sent, decode, encode
from holdfast.learning.device import choose_device
from holdfast.method import Method
from holdfast.privacy.chain import check_head
from holdfast.privacy.gate import house_of, pass_gate, tell_code
from holdfast.runs.build import make_plan
from holdfast.runs.deal import promises
from holdfast.runs.experiment import Experiment, is_description, is_schema, load
from holdfast.runs.plan import Plan
from holdfast.trust.testing import TEST

log = logging.getLogger("holdfast")
OwnSamples = Callable[[Mapping[str, Any]], Samples]  # node config -> the site's own training samples


def client_app(experiment: Experiment | Path | str, samples: OwnSamples | None = None) -> ClientApp:
    """The ClientApp of a site; `samples` reads its own data, else it takes its share of the task's."""
    app = ClientApp()
    kept: dict[str, Own] = {}  # Flower may call one app more than once, or start a process each time

    def answer(packet: Packet, context: Context) -> Packet:
        torch.set_num_threads(1)  # the same bits as on the embedded engine
        asked, site = Letter(-1, -1, "unknown"), None
        try:
            site = Site(experiment, context.node_config)
            note_asked(site.memory, site.experiment, None if samples else context.node_config)
            asked = read_letter(packet, site.most_bytes)
            site.check(asked)
            version = f"{site.folder} {site.table_version}"
            if version not in kept:
                kept[version] = site.own(asked.client, samples)
            letter = site.perform(kept[version], asked)
            return Packet(encode(letter, halve=letter.half), reply_to=packet)
        except Exception as error:  # whatever goes wrong here is this site's absence; others are told the code alone
            return Packet(encode(refuse(site, asked, error)), reply_to=packet)

    def hello(packet: Packet, context: Context) -> Packet:
        asked, site = Letter(-1, -1, "hello"), None
        try:
            site = Site(experiment, context.node_config)
            said = replace(asked, scalars={"site": site.name, "token": site.token})
        except Exception as error:  # as above
            said = refuse(site, asked, error)
        return Packet(encode(said), reply_to=packet)

    for register in (app.train("job"), app.evaluate("job"), app.query("job")):
        register(answer)
    app.query("hello")(hello)
    return app


def read_letter(packet: Packet, bound: int) -> Letter:
    try:
        return decode(packet.content, bound)
    except Exception as error:  # a stranger's bytes
        raise Refusal("message", f"a message that cannot be read: {error}") from error


def refuse(site: Site | None, asked: Letter, error: Exception) -> Letter:
    """Say no: all of it to the site's own log, the refusal to its book, and to the moderator its code."""
    code = code_of(error)
    kind = "" if isinstance(error, HoldfastError) else f"{type(error).__name__}: "
    where = f"job {asked.job[:WORD]!r} of round {asked.round + 1}"
    trace = error if error.__cause__ is not None or not isinstance(error, Refusal) else None
    log.error("%s %s (%s): %s%s", NOT_DONE, where, code, kind, " ".join(str(error).split()), exc_info=trace)
    if site is not None and asked.job != "hello":
        if code not in PEOPLE:
            detail = str(error) if trace is None else full_text(error)
            append(site.memory, f"{now()} {where} ({code}): {detail}")
        try:
            Book(site.memory).refuse(asked.job, asked.round, asked.client, code)
        except HoldfastError as full:  # a full disk: the refusal stands all the same
            log.error("%s", full)
    return Letter(asked.client, asked.round, asked.job, error=code if site is None else site.tell(code))


@dataclass(frozen=True)
class Own:
    """A site's client in an experiment, and the experiment's method."""

    client: Client
    method: Method
    notes: tuple[str, ...] = ()  # codes of what others are to know with each answer


class Site:
    """One site, as its node is configured."""

    def __init__(self, experiment: Experiment | Path | str, config: Mapping[str, Any]) -> None:
        self.experiment = experiment if isinstance(experiment, Experiment) else load(Path(experiment))
        self.beside = None if isinstance(experiment, Experiment) else Path(experiment).resolve().parent
        if config.get("data") and reads_data(self.experiment.task):  # else it is for the app's own function
            self.experiment = replace(self.experiment, data=str(config["data"]))
        if config.get("device"):
            self.experiment = replace(self.experiment, device=str(config["device"]))
        choose_device(self.experiment.device)
        self.config = config
        self.table = Path(str(config["table"])).expanduser() if config.get("table") else None
        self.records = Path(str(config["records"])).expanduser() if config.get("records") else None
        self.signing_key = Path(str(config["signing-key"])).expanduser() if config.get("signing-key") else None
        self.name = name_of(config)
        if not config.get("folder"):
            raise HoldfastError(f'{self.name}: say in its node config where it keeps its memory, as in folder="...".')
        self.folder = Path(str(config["folder"])).expanduser()
        self.token = draw_token(self.folder)  # also makes the folder known as a site's, with one ledger for all
        self.policy = SitePolicy()
        self.check_schema()
        self.fingerprint = fingerprint_of(self.experiment)

    def tell(self, code: str) -> str:
        """The code that leaves for an error, as far as the site's policy lets it."""
        try:
            house = house_of(self.memory)
            return tell_code(None if house.policy is None else house.read_policy(0.0), code)
        except HoldfastError:  # a policy that cannot be read
            return code if code in ABOUT_THE_QUESTION else "withheld"

    def check_schema(self) -> None:
        """Refuse a table where the experiment has no schema for it, and another schema than the experiment's."""
        if is_description(self.experiment.task) != (self.records is not None) and not self.config.get("data"):
            lacking = "it has no description of them" if self.records else "say where yours are, as in --images FOLDER"
            raise Refusal("data", f"{self.name}: the experiment's task is {self.experiment.task}; {lacking}.")
        named = is_schema(self.experiment.task)
        if named != (self.table is not None):
            lacking = "no table is named here; say which, as in --table FILE" if named else "it has no schema of tables"
            raise Refusal("data", f"{self.name}: the experiment's task is {self.experiment.task}, and {lacking}.")
        if not named or not self.config.get("schema"):
            return
        refuse_other_schema(read_schema(Path(str(self.config["schema"]))), read_schema(Path(self.experiment.task)))

    @property
    def table_version(self) -> str:
        """Tells a table that has changed from one that has not, without reading it."""
        if self.table is None or not self.table.exists():
            return ""
        told = self.table.stat()
        return f"{told.st_size} {told.st_mtime_ns}"

    @property
    def most_bytes(self) -> int:
        """The largest message it takes."""
        return int(str(self.config.get("max-bytes", BOUND)))

    @property
    def memory(self) -> Path:
        """Where it keeps what it remembers of this experiment."""
        return self.folder / self.fingerprint[:16]

    def check(self, letter: Letter, rehearsed: bool = False) -> None:
        """Refuse what the site's policy does not allow, and what was meant for another experiment or client."""
        if self.config.get("policy"):
            self.policy = read_site_policy(Path(str(self.config["policy"])))
            carry_privacy(self.policy, self.folder)
        check_experiment(self.policy, self.fingerprint)
        if letter.experiment != self.fingerprint:
            raise Refusal(
                "experiment",
                f"the moderator plays experiment {letter.experiment[:12]}..., this site has "
                f"{self.fingerprint[:12]}...; install the same app on both.",
            )
        if letter.head:
            check_head(house_of(self.memory).read_ledger().links, letter.head, "the moderator")
        if not rehearsed:
            check_withdrawn(self.memory)
            check_paused(self.folder)
            check_approved(self.folder, self.policy, self.proposal, self.about)
        bind_client(self.memory, letter.client, self.experiment.clients)

    @property
    def head(self) -> str:
        """Of the hash chain of the site's ledger; empty where there is none that can be read."""
        try:
            return next(reversed(house_of(self.memory).read_ledger().links), "")
        except HoldfastError:
            return ""

    @property
    def bounded(self) -> bool:
        """Whether a policy bounds epsilon here, so that noised metrics promise something too."""
        house = house_of(self.memory)
        return house.policy is not None and house.read_policy(0.0).limited

    @property
    def proposal(self) -> Proposal:
        """What people at this site are to approve."""
        policy = Path(str(self.config["policy"])) if self.config.get("policy") else None
        return proposal_of(self.experiment, self.beside, policy)

    @property
    def about(self) -> str:
        """The experiment in a few words, for the log of approvals."""
        e = self.experiment
        return f"{e.method} on {Path(e.task).name} with {e.clients} sites, {e.rounds} rounds, protect {e.protect}"

    def own(self, id: int, samples: OwnSamples | None = None) -> Own:
        """The client of this site, with its share of the task's samples or with its own."""
        plan, notes = self.plan(id, samples)
        return Own(plan.client(id, plan.model(), self.memory), plan.method, notes)

    def plan(self, id: int, samples: OwnSamples | None = None) -> tuple[Plan, tuple[str, ...]]:
        """The experiment with this site's own records in its place, and what others are to know of them."""
        try:
            away = self.table is not None or self.records is not None
            plan = make_plan(replace(self.experiment, data=None, test=None) if away else self.experiment)
            notes: tuple[str, ...] = ()
            if self.table is not None:
                own = own_samples(schema_of(plan.task), self.table)
                notes = ("table-changed",) if Book(self.memory).holds_other(sha256_of(self.table)) else ()
            elif self.records is not None:
                own = own_records(self.experiment.task, self.records)
            elif samples is not None:
                own = samples(self.config)
            if away or samples is not None:
                parts = [(part[:0], part[:0], part[:0]) for part, _, _ in plan.parts]  # the others' are elsewhere
                task = replace(plan.task, train=own)
                generator = rng(self.experiment.seed, -1, id, "split")
                promise = promises(self.experiment) or self.bounded
                parts[id] = split_by(self.experiment.split, task, torch.arange(len(own)), generator, promise)
                plan = replace(plan, task=task, parts=parts)
            return plan, notes
        except Exception as error:  # a user's own code, reading a user's own data
            raise Refusal("data", f"{self.name} cannot load its data: {type(error).__name__}: {error}") from error

    def perform(self, own: Own, letter: Letter) -> Letter:
        """Do one job, if the experiment has it and the policy allows it."""
        message = letter.message()
        check_question(message, own.client, own.method)
        check_open(own.client, message.job)
        check_records(own.client, message, self.policy.min_records)
        book = Book(self.memory)
        base = base_of(message.tensors) if self.policy.members is not None else None
        if self.policy.members is not None and message.job == TEST.name:
            check_relayed(self.policy.members, self.fingerprint, message, book.base_in(message.round))
        book.admit(message, self.policy.max_rounds, base)
        notes = [*own.notes] if message.job == "train" else []
        digests = message.job == DIGEST.name or (message.job == SECURE_SUM.name and own.method.algorithm.one_message)
        if digests and not self.policy.digest:
            raise Refusal("digest-kept", "policy: digest = false, and the experiment asks for nothing else.")
        kept: Tensors = {}
        if message.scalars.get("digest") and not self.policy.digest:
            message = without_digest(message)
            kept = pack(digest=excuse("digest-kept"))  # the moderator forgets an earlier digest, too
        client = own.client
        if message.job in (SECURE_SUM.name, SECURE_TRAIN.name):
            client = replace(client, keyring=keyring_from(self.signing_key, self.policy.members))
        reply = perform(client, message)
        scalars = dict(reply.scalars)
        if "metrics" in scalars:
            note_metrics(self.memory, own.client.metrics, message.round, scalars)
        if notes:
            scalars |= pass_gate(policy_of(own.client), {}, {"notes": [*scalars.get("notes", ()), *notes]})[1]
        tensors = as_sent({**reply.tensors, **kept}, letter.half)
        if self.signing_key is not None and message.job == TRAIN.name:
            scalars["signature"] = sign_update(self.signing_key, self.fingerprint, message, tensors)
        answer = Letter(letter.client, letter.round, letter.job, tensors, scalars, seconds=reply.seconds)
        return replace(answer, half=letter.half, head=self.head)


def refuse_other_schema(ours: Schema, theirs: Schema) -> None:
    """Refuse a site's copy of the schema that says something else than the experiment's."""
    if ours.fingerprint != theirs.fingerprint:
        raise Refusal(
            "schema",
            f"{ours.where} is {ours.name}, version {ours.version}, and the experiment goes by "
            f"{theirs.name}, version {theirs.version}: they do not say the same.",
        )


def schema_of(task: Task) -> Schema:
    assert task.schema is not None
    return task.schema


def without_digest(message: Message) -> Message:
    return replace(message, scalars={**message.scalars, "digest": False})


def name_of(config: Mapping[str, Any]) -> str:
    """The site's name from its node config.

    >>> name_of({"site": "north"}), name_of({"partition-id": 2})
    ('north', 'site-2')
    """
    if config.get("site") not in (None, ""):
        return str(config["site"])
    if "partition-id" in config:
        return f"site-{config['partition-id']}"
    raise HoldfastError('A node must say which site it is: --node-config \'site="site-0" folder="..."\'.')
