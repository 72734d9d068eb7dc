"""A site as a Flower ClientApp: the same perform() as everywhere, with the site's memory and policy on its own disk.

What the node's operator says in `--node-config`:

    site          its name, as the moderator knows it (or partition-id: site-0, site-1, ...)
    folder        where it keeps its memory, its token and its book of trainings
    policy        a TOML file of what may be asked of it (optional)
    data          folder of the task's files here, in place of the experiment's (optional)
    max-bytes     the largest message it takes (optional)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.app import Message as Packet
from flwr.clientapp import ClientApp

from holdfast.client import Client, perform
from holdfast.core import Message
from holdfast.engines.flower.codec import BOUND, Letter, decode, encode
from holdfast.engines.flower.policy import (
    SitePolicy,
    carry_privacy,
    check_experiment,
    count_training,
    draw_token,
    fingerprint_of,
    read_site_policy,
)
from holdfast.errors import HoldfastError
from holdfast.experiment import Experiment, load
from holdfast.plan import make_plan
from holdfast.randomness import rng
from holdfast.tasks import Samples
from holdfast.tasks.partitions import split

OwnSamples = Callable[[Mapping[str, Any]], Samples]  # node config -> the site's own training samples


def client_app(experiment: Experiment | Path | str, samples: OwnSamples | None = None) -> ClientApp:
    """The ClientApp of a site; `samples` reads its own data, else it takes its share of the task's."""
    app = ClientApp()
    kept: dict[tuple[int, str], Client] = {}  # Flower may call one app more than once, or start a process each time

    def answer(packet: Packet, context: Context) -> Packet:
        torch.set_num_threads(1)  # the same bits as on the embedded engine
        letter = do(packet, context)
        return Packet(encode(letter, halve=letter.half), reply_to=packet)

    def do(packet: Packet, context: Context) -> Letter:
        asked = Letter(-1, -1, "unknown")
        try:
            asked = decode(packet.content, int(str(context.node_config.get("max-bytes", BOUND))))
            site = Site(experiment, context.node_config)
            site.check(asked)
            key = (asked.client, str(site.folder))
            if key not in kept:
                kept[key] = site.client(asked.client, samples)
            return site.perform(kept[key], asked)
        except Exception as error:  # whatever goes wrong here is this site's absence, with its reason
            reason = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
            return Letter(asked.client, asked.round, asked.job, error=reason or type(error).__name__)

    def hello(packet: Packet, context: Context) -> Packet:
        try:
            site = Site(experiment, context.node_config)
            said = Letter(-1, -1, "hello", scalars={"site": site.name, "token": site.token})
        except HoldfastError as error:
            said = Letter(-1, -1, "hello", error=str(error))
        return Packet(encode(said), reply_to=packet)

    for register in (app.train("job"), app.evaluate("job"), app.query("job")):
        register(answer)
    app.query("hello")(hello)
    return app


class Site:
    """One site, as its node is configured."""

    def __init__(self, experiment: Experiment | Path | str, config: Mapping[str, Any]) -> None:
        self.experiment = experiment if isinstance(experiment, Experiment) else load(Path(experiment))
        if config.get("data"):
            self.experiment = replace(self.experiment, data=str(config["data"]))
        self.config = config
        self.name = name_of(config)
        if not config.get("folder"):
            raise HoldfastError(f'{self.name}: say in its node config where it keeps its memory, as in folder="...".')
        self.folder = Path(str(config["folder"])).expanduser()
        self.token = draw_token(self.folder)  # also makes the folder known as a site's, with one ledger for all
        self.policy = SitePolicy()
        self.fingerprint = fingerprint_of(self.experiment)

    @property
    def memory(self) -> Path:
        """Where it keeps what it remembers of this experiment."""
        return self.folder / self.fingerprint[:16]

    def check(self, letter: Letter) -> None:
        """Refuse what the site's policy does not allow, and what was meant for another experiment."""
        if self.config.get("policy"):
            self.policy = read_site_policy(Path(str(self.config["policy"])))
            carry_privacy(self.policy, self.folder)
        check_experiment(self.policy, self.fingerprint)
        if letter.experiment != self.fingerprint:
            raise HoldfastError(
                f"the moderator plays experiment {letter.experiment[:12]}..., this site has "
                f"{self.fingerprint[:12]}...; install the same app on both."
            )

    def client(self, id: int, samples: OwnSamples | None) -> Client:
        """The client of this site, with its share of the task's samples or with its own."""
        plan = make_plan(self.experiment)
        if not 0 <= id < self.experiment.clients:
            raise HoldfastError(f"{self.name} is asked to be client {id} of {self.experiment.clients}.")
        if samples is not None:
            own = samples(self.config)
            parts = list(plan.parts)
            parts[id] = split(torch.arange(len(own)), rng(self.experiment.seed, -1, id, "split"))
            plan = replace(plan, task=replace(plan.task, train=own), parts=parts)
        return plan.client(id, plan.model(), self.memory)

    def perform(self, client: Client, letter: Letter) -> Letter:
        """Do one job, within the policy."""
        message = letter.message()
        notes = []
        if message.job == "train":
            count_training(self.policy, self.memory, message.round)
            if message.scalars.get("digest") and not self.policy.digest:
                message = without_digest(message)
                notes = [f"{self.name} keeps its digest: its policy does not let one leave"]
        reply = perform(client, message)
        scalars = dict(reply.scalars)
        if notes:
            scalars["notes"] = [*scalars.get("notes", ()), *notes]
        answer = Letter(letter.client, letter.round, letter.job, reply.tensors, scalars, seconds=reply.seconds)
        return replace(answer, half=letter.half)


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
