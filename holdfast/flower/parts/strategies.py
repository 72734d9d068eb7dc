"""FedDig and FedTest for Flower apps of one's own: strategies around any strategy, and mods for the ClientApp.

    app = ClientApp(mods=[digest_mod(read_features, classes=10), peer_test_mod()])       # at the sites
    strategy = FedDig(FedTest(FedAvg()), model=Net)                                   # at the moderator
    strategy.start(grid=grid, initial_arrays=..., num_rounds=..., timeout=30)

FedDig: each site leaves a digest of its features with its first update. When a site does not answer, the model is
trained on its digest in its place, and after aggregation on all digests. The model must read the features that the
digests are made of. FedTest: some sites test the others' models with the app's own evaluate function, and an update
counts by its score to the power of four. Flower has no links between sites, so the moderator relays the models.
Both refuse a reply that is no update: wrong names, shapes or types, not finite, or a change beyond `max_norm`.
"""

from __future__ import annotations

import hashlib
import logging
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import get_args

import torch
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from flwr.app import Message as Packet
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from holdfast.absence.server_step import server_learning, share_of
from holdfast.core.errors import HoldfastError, nearest, plain
from holdfast.core.randomness import rng
from holdfast.core.types import Reply
from holdfast.data.task import Samples
from holdfast.digests.digest import Digest, open_digest
from holdfast.digests.stretching import stretched
from holdfast.flower.parts.around import FAR, Around, Settings, answer_as, first_arrays
from holdfast.flower.parts.mods import DIGEST, TESTED, WANTED, unseal
from holdfast.learning.device import CPU, moved
from holdfast.learning.loop import train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.trust.fedtest import FedTest as Published
from holdfast.trust.testers import Manner, choose_testers, read_report

log = logging.getLogger("flwr")  # where Flower logs


class FedDig(Around):
    """A missing site's digest stands in for it; see absence/feddig.py for the method."""

    def __init__(
        self,
        strategy: Strategy,
        model: Callable[[], nn.Module],
        *,
        learning: Learning = Learning(),
        server_epochs: int = 1,
        loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
        weighted_by: str = "num-examples",
        max_norm: float | None = FAR,
        encoder: str | None = None,
        classes: int | None = None,
        seed: int = 0,
        most_sites: int = 1000,
    ) -> None:
        super().__init__(strategy, weighted_by, max_norm)
        self._model, self._loss, self._learning = model(), loss, learning
        self._most_sites = most_sites
        self._names: dict[int, str] = {}  # node -> the site that it speaks for
        self._server_epochs, self._seed = server_epochs, seed
        self._encoder, self._classes = encoder, classes
        self._digests: dict[str, Digest] = {}
        self._stretched: dict[str, Digest] = {}  # the same with the spread of records (digests/stretching.py)
        self._usual = RecordDict()  # a reply of a site: a stand-in's must look the same

    @property
    def digests(self) -> Mapping[str, Digest]:
        """The digests in hand, by site: the name under which the node's key is registered, or else its number."""
        return self._digests

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Settings, grid: Grid) -> Iterable[Packet]:
        """As the inner strategy does, with the nodes whose digest is already here named, so that they do not resend."""
        self._names = {node.node_id: node.name or f"node-{node.node_id}" for node in grid.get_nodes()}
        known = sorted(str(node) for node, name in self._names.items() if name in self._digests)
        told = Settings({**config, WANTED: known or [""]})
        return super().configure_train(server_round, arrays, told, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Packet]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the stand-ins of sites that did not answer, aggregate, and learn from all digests."""
        packets = list(replies)
        brought = {p.metadata.src_node_id: self._take_out(p) for p in packets if p.has_content()}
        packets = self._accept(packets)
        heard, known = set(), set(self._digests)
        for packet in packets:
            if packet.has_content():
                node = packet.metadata.src_node_id
                site = self._names.get(node, f"node-{node}")
                heard.add(site)
                self._receive(site, brought[node], self._samples_of(packet))
                self._usual = packet.content
        missing = [site for site in sorted(self._digests) if site not in heard]
        if missing:
            log.info("FedDig: the digests of %s stand in", ", ".join(missing))
        packets += [self._stand_in(server_round, site) for site in missing]
        arrays, metrics = super().aggregate_train(server_round, packets)
        if arrays is not None and self._digests and self._server_epochs:
            new = share_of(self._digests.keys() - known, {site: one.samples for site, one in self._digests.items()})
            rows = sum(len(one.labels) for one in self._stretched.values())
            learning = server_learning(self._learning, self._server_epochs, new, rows)
            arrays = self._learn(arrays, list(self._stretched.values()), "server step", server_round, learning, True)
        return arrays, metrics

    def _take_out(self, packet: Packet) -> object:
        """Take the digest out of a reply, so that the inner strategy finds what it expects."""
        return packet.content.pop(DIGEST, None)

    def _samples_of(self, packet: Packet) -> int:
        """The samples that an accepted update claims: a digest cannot have more rows."""
        [metrics] = packet.content.metric_records.values()
        return math.ceil(metrics[self._weighted_by])  # type: ignore[arg-type]  # accepted: it is a number

    def _receive(self, site: str, sealed: object, samples: int) -> None:
        """Keep the digest that a site sent, if it sent one that can be used and there is room for one more site."""
        if not isinstance(sealed, ArrayRecord):
            return
        try:
            if site not in self._digests and len(self._digests) >= self._most_sites:
                raise HoldfastError(f"there are {self._most_sites} sites already; raise most_sites if they are real.")
            opened = open_digest(unseal(sealed), encoder=self._encoder, classes=self._classes, rows=samples)
            if self._digests and opened.feature_shape != (usual := next(iter(self._digests.values())).feature_shape):
                raise HoldfastError(f"its features have the shape {opened.feature_shape}, those of others {usual}.")
            self._digests[site] = opened
            self._stretched[site] = stretched(replace(opened, weights="balanced"))  # as digest_mod mixes
        except Exception as error:  # a stranger's bytes: numpy and torch have many words for what is wrong
            log.warning("FedDig: the digest of %s is refused: %s", site, plain(str(error)))

    def _stand_in(self, server_round: int, site: str) -> Packet:
        """What the site would have answered, learnt from its digest."""
        digest = self._stretched[site]
        [model], [(name, metrics)] = self._usual.array_records, self._usual.metric_records.items()
        arrays = self._learn(self._sent, [digest], site, server_round, self._learning)
        said = MetricRecord({**metrics, self._weighted_by: float(digest.samples)})
        number = int.from_bytes(hashlib.sha256(site.encode()).digest()[:7], "big")  # a node that nobody is
        return answer_as(number, RecordDict({model: arrays, name: said}))

    def _learn(
        self,
        arrays: ArrayRecord,
        digests: Sequence[Digest],
        purpose: str,
        server_round: int,
        learning: Learning,
        falling: bool = False,
    ) -> ArrayRecord:
        """The model trained on digests, in the product's one epoch loop."""
        self._model.load_state_dict(arrays.to_torch_state_dict())
        features, labels = torch.cat([d.features for d in digests]), torch.cat([d.labels for d in digests])
        generator = rng(self._seed, server_round, -1, purpose)
        samples, objective = Samples((features,), labels), TaskLoss(self._loss)
        train(self._model, samples, learning, generator, objective, falling=falling)
        return ArrayRecord(moved(self._model.state_dict(), CPU))


class FedTest(Around):
    """Sites test each other's models, and an update counts by score ** power; see trust/fedtest.py for the method."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        testers: int = 5,
        power: float = 4.0,
        adapt: bool = False,
        decay: float = 0.5,
        choice: Manner = "random",
        score: str = "eval_acc",
        weighted_by: str = "num-examples",
        max_norm: float | None = FAR,
        timeout: float = 600.0,
        seed: int = 0,
    ) -> None:
        try:
            self._method = Published(testers=testers, power=power, adapt=adapt, decay=decay, choice=choice)
        except ValueError:
            raise HoldfastError(
                f"FedTest: testers {testers}, power {power} or decay {decay} makes no sense; see its help."
            ) from None
        if choice not in (known := get_args(Manner)):
            raise HoldfastError(f"FedTest: there is no choice {choice!r} of testers; {nearest(choice, known)}")
        if isinstance(strategy, FedDig):
            raise HoldfastError("FedTest goes inside FedDig, so that stand-ins are tested too: FedDig(FedTest(...)).")
        super().__init__(strategy, weighted_by, max_norm)
        self._score, self._timeout, self._seed = score, timeout, seed
        self._scores: dict[int, float] = {}
        self._power, self._performance = power, -1.0
        self._nodes: list[int] = []  # all that ever answered: a node's place here is its number among testers
        self._before: list[int] = []  # the places of last round's testers
        self._grid: Grid | None = None
        self.bytes_relayed = 0  # models that went to testers through the moderator

    @property
    def scores(self) -> Mapping[int, float]:
        """The scores so far, by node."""
        return self._scores

    @property
    def power(self) -> float:
        """The power of the scores, as it is now."""
        return self._power

    @property
    def testers(self) -> Sequence[int]:
        """The nodes that tested last."""
        return [self._nodes[place] for place in self._before]

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Settings, grid: Grid) -> Iterable[Packet]:
        self._grid = grid
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Packet]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let peers test the models, and hand the inner strategy score ** power as each reply's weight."""
        packets = self._accept(list(replies))
        good = [packet for packet in packets if packet.has_content()]
        models = {packet.metadata.src_node_id: first_arrays(packet.content) for packet in good}
        self._remember(self._test(server_round, models))
        usual = statistics.fmean(self._scores.values()) if self._scores else 1.0
        for packet in good:
            score = self._scores.get(packet.metadata.src_node_id, usual)
            for record in packet.content.metric_records.values():
                record[self._weighted_by] = max(score, 1e-3) ** self._power
        return super().aggregate_train(server_round, packets)

    def _remember(self, found: Mapping[int, float]) -> None:
        """The scores, and the power, with this round's tests in them."""
        decay = self._method.decay
        for node, value in found.items():
            old = self._scores.get(node)
            self._scores[node] = value if old is None else decay * old + (1 - decay) * value
        if found:
            now = statistics.median(found.values())
            if self._method.adapt:
                self._power = float(self._method.adapted(self._power, now, self._performance))
            self._performance = now

    def _choose(self, server_round: int, models: Mapping[int, ArrayRecord], grid: Grid) -> list[int]:
        """Who tests in this round: others than in the last one, as far as there are others."""
        present = sorted(set(models) & set(grid.get_node_ids()))  # stand-ins are tested, but test nobody
        self._nodes += [node for node in present if node not in self._nodes]
        self._before = choose_testers(
            self._method.choice,
            self._method.testers,
            [self._nodes.index(node) for node in present],
            self._before,
            [self._scores.get(node, 0.0) for node in self._nodes],
            self._seed,
            server_round,
        )
        return [self._nodes[place] for place in self._before]

    def _test(self, server_round: int, models: Mapping[int, ArrayRecord]) -> dict[int, float]:
        """The mean of what the testers say of each model; nobody tests its own."""
        assert self._grid is not None
        packets, asked = [], {}
        for tester in self._choose(server_round, models, self._grid):
            tested = {f"model-{node}": arrays for node, arrays in models.items() if node != tester}
            if not tested:
                continue
            told: dict[str, list[str] | int | str] = {TESTED: sorted(tested), "server-round": server_round}
            told["score"] = self._score
            content = RecordDict({**tested, "config": ConfigRecord(told)})  # type: ignore[arg-type]
            packets.append(Packet(content, dst_node_id=tester, message_type=MessageType.EVALUATE))
            self.bytes_relayed += sum(len(array.data) for record in tested.values() for array in record.values())
            asked[tester] = [node for node in models if node != tester]
        replies = self._grid.send_and_receive(packets, timeout=self._timeout) if packets else []
        heard = {reply.metadata.src_node_id: reply for reply in replies}
        found: dict[int, list[float]] = {}
        for tester, nodes in asked.items():
            fault, values = read_scores(heard.get(tester), nodes)
            if fault:
                log.warning("FedTest: tester %d is ignored in this round: %s", tester, fault)
            for node, value in values.items():
                found.setdefault(node, []).append(value)
        return {node: statistics.fmean(values) for node, values in found.items()}


def read_scores(reply: Packet | None, nodes: Sequence[int]) -> tuple[str, dict[int, float]]:
    """The first thing wrong with what a tester says of the nodes' models, or nothing, and what it says."""
    if reply is None:
        return "it did not answer", {}
    if reply.has_error():
        return f"it failed: {reply.error.reason}", {}
    said = reply.content.metric_records.get("scores", MetricRecord())
    scores = {name.removeprefix("model-"): value for name, value in said.items()}
    return read_report(Reply(reply.metadata.src_node_id, {}, {"accuracies": scores}), nodes)
