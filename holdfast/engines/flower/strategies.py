"""FedDig and FedTest for Flower apps of one's own: strategies around any strategy, and mods for the ClientApp.

    app = ClientApp(mods=[digest_mod(read_features, classes=10), peer_test_mod()])       # at the sites
    strategy = FedDig(FedTest(FedAvg()), model=Net)                                   # at the moderator
    strategy.start(grid=grid, initial_arrays=..., num_rounds=..., timeout=30)

FedDig: each site leaves a digest of its features with its first update. When a site does not answer, the model is
trained on its digest in its place, and after aggregation on all digests. The model must read the features that the
digests are made of. FedTest: some sites test the others' models with the app's own evaluate function, and an update
counts by its score to the power of four. Flower has no links between sites, so the moderator relays the models.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import INFO

import torch
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from flwr.app import Message as Packet
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from holdfast.client import train
from holdfast.core import Learning
from holdfast.digests import Digest, open_digest
from holdfast.engines.flower.mods import DIGEST, SITE, TESTED, WANTED, unseal
from holdfast.errors import HoldfastError
from holdfast.randomness import rng
from holdfast.tasks import Samples

Settings = ConfigRecord


class Around(Strategy):
    """A strategy around another one: it changes what it must and passes the rest on."""

    def __init__(self, strategy: Strategy) -> None:
        self.inner = strategy

    def summary(self) -> None:
        self.inner.summary()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Settings, grid: Grid) -> Iterable[Packet]:
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Packet]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        return self.inner.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: Settings, grid: Grid
    ) -> Iterable[Packet]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Packet]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)


class FedDig(Around):
    """A missing site's digest stands in for it; see absence/feddig.py for the method."""

    def __init__(
        self,
        strategy: Strategy,
        model: Callable[[], nn.Module],
        *,
        learning: Learning = Learning(),
        server_epochs: int = 2,
        loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
        weighted_by: str = "num-examples",
        encoder: str | None = None,
        classes: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(strategy)
        self._model, self._loss, self._learning = model(), loss, learning
        self._server_epochs, self._seed = server_epochs, seed
        self._encoder, self._classes = encoder, classes
        self._weighted_by = weighted_by
        self._digests: dict[str, Digest] = {}
        self._metrics: dict[str, float] = {}  # as replies have them: a stand-in's must look the same
        self._arrays = ArrayRecord()

    @property
    def digests(self) -> Mapping[str, Digest]:
        """The digests in hand, by site."""
        return self._digests

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Settings, grid: Grid) -> Iterable[Packet]:
        """As the inner strategy does, with the sites whose digest is already here named, so that they do not resend."""
        told = Settings({**config, WANTED: sorted(self._digests) or [""]})
        self._arrays = arrays
        return self.inner.configure_train(server_round, arrays, told, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Packet]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the stand-ins of sites that did not answer, aggregate, and learn from all digests."""
        packets = list(replies)
        heard = {self._take_out(packet) for packet in packets if packet.has_content()}
        missing = [site for site in sorted(self._digests) if site not in heard]
        if missing:
            log(INFO, "FedDig: the digests of %s stand in", ", ".join(missing))
        packets += [self._stand_in(server_round, site) for site in missing]
        arrays, metrics = self.inner.aggregate_train(server_round, packets)
        if arrays is not None and self._digests and self._server_epochs:
            arrays = self._learn(arrays, list(self._digests.values()), "server step", server_round, self._server_epochs)
        return arrays, metrics

    def _take_out(self, packet: Packet) -> str:
        """Take site and digest out of a reply, so that the inner strategy finds what it expects."""
        content = packet.content
        said = content.pop(SITE, None)
        site = str(said["site"]) if isinstance(said, ConfigRecord) else f"node-{packet.metadata.src_node_id}"
        sealed = content.pop(DIGEST, None)
        if isinstance(sealed, ArrayRecord):
            try:
                self._digests[site] = open_digest(unseal(sealed), encoder=self._encoder, classes=self._classes)
            except (HoldfastError, ValueError) as error:
                log(INFO, "FedDig: the digest of %s is refused: %s", site, error)
        for record in content.metric_records.values():
            self._metrics = {key: float(value) for key, value in record.items() if not isinstance(value, list)}
        return site

    def _stand_in(self, server_round: int, site: str) -> Packet:
        """What the site would have answered, learnt from its digest."""
        digest = self._digests[site]
        arrays = self._learn(self._arrays, [digest], site, server_round, self._learning.epochs)
        metrics = MetricRecord({**self._metrics, self._weighted_by: float(digest.samples)})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        number = int.from_bytes(hashlib.sha256(site.encode()).digest()[:7], "big")  # a node that nobody is
        asked = Packet(RecordDict(), dst_node_id=number, message_type=MessageType.TRAIN)
        return Packet(content, reply_to=asked)

    def _learn(
        self, arrays: ArrayRecord, digests: Sequence[Digest], purpose: str, server_round: int, epochs: int
    ) -> ArrayRecord:
        """The model trained on digests, in the product's one epoch loop."""
        self._model.load_state_dict(arrays.to_torch_state_dict())
        features, labels = torch.cat([d.features for d in digests]), torch.cat([d.labels for d in digests])
        learning = replace(self._learning, epochs=epochs)
        generator = rng(self._seed, server_round, -1, purpose)
        train(self._model, Samples((features,), labels), learning, generator, self._loss)
        return ArrayRecord(self._model.state_dict())


class FedTest(Around):
    """Sites test each other's models, and an update counts by score ** power; see trust/fedtest.py for the method."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        testers: int = 5,
        power: float = 4.0,
        decay: float = 0.5,
        score: str = "eval_acc",
        weighted_by: str = "num-examples",
        timeout: float = 600.0,
        seed: int = 0,
    ) -> None:
        if testers < 1 or power <= 0 or not 0 <= decay < 1:
            raise HoldfastError(
                f"FedTest: testers {testers}, power {power} or decay {decay} makes no sense; see its help."
            )
        if isinstance(strategy, FedDig):
            raise HoldfastError("FedTest goes inside FedDig, so that stand-ins are tested too: FedDig(FedTest(...)).")
        super().__init__(strategy)
        self._testers, self._power, self._decay = testers, power, decay
        self._score, self._weighted_by = score, weighted_by
        self._timeout, self._seed = timeout, seed
        self._scores: dict[int, float] = {}
        self._grid: Grid | None = None
        self.bytes_relayed = 0  # models that went to testers through the moderator

    @property
    def scores(self) -> Mapping[int, float]:
        """The scores so far, by node."""
        return self._scores

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Settings, grid: Grid) -> Iterable[Packet]:
        self._grid = grid
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Packet]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let peers test the models, and hand the inner strategy score ** power as each reply's weight."""
        packets = list(replies)
        good = [packet for packet in packets if packet.has_content()]
        models = {packet.metadata.src_node_id: first_arrays(packet) for packet in good}
        for node, found in self._test(server_round, models).items():
            old = self._scores.get(node)
            self._scores[node] = found if old is None else self._decay * old + (1 - self._decay) * found
        usual = statistics.fmean(self._scores.values()) if self._scores else 1.0
        for packet in good:
            score = self._scores.get(packet.metadata.src_node_id, usual)
            for record in packet.content.metric_records.values():
                record[self._weighted_by] = max(score, 1e-3) ** self._power
        return self.inner.aggregate_train(server_round, packets)

    def _test(self, server_round: int, models: Mapping[int, ArrayRecord]) -> dict[int, float]:
        """The mean of what the testers say of each model; nobody tests its own."""
        assert self._grid is not None
        nodes = sorted(set(models) & set(self._grid.get_node_ids()))  # stand-ins are tested, but test nobody
        draw = torch.randperm(len(nodes), generator=rng(self._seed, server_round, -1, "testers")).tolist()
        testers = [nodes[i] for i in draw[: self._testers]]
        packets = []
        for tester in testers:
            tested = {f"model-{node}": arrays for node, arrays in models.items() if node != tester}
            if not tested:
                continue
            told: dict[str, list[str] | int | str] = {TESTED: sorted(tested), "server-round": server_round}
            told["score"] = self._score
            content = RecordDict({**tested, "config": ConfigRecord(told)})  # type: ignore[arg-type]
            packets.append(Packet(content, dst_node_id=tester, message_type=MessageType.EVALUATE))
            self.bytes_relayed += sum(len(array.data) for record in tested.values() for array in record.values())
        found: dict[int, list[float]] = {}
        for reply in self._grid.send_and_receive(packets, timeout=self._timeout) if packets else []:
            told_scores = reply.content.metric_records.get("scores") if reply.has_content() else None
            for name, value in (told_scores or MetricRecord()).items():
                if name.removeprefix("model-").isdigit() and isinstance(value, float) and 0 <= value <= 1:
                    found.setdefault(int(name.removeprefix("model-")), []).append(value)
        return {node: statistics.fmean(values) for node, values in found.items() if node in models}


def first_arrays(packet: Packet) -> ArrayRecord:
    """The model in a train reply."""
    return next(iter(packet.content.array_records.values()))
