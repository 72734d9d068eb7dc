"""What FedDig and FedTest as Flower strategies do not take: bad updates, reports that make no sense."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from strategy_helpers import fedavg, grid_of, net, read, start
from torch import nn

from holdfast.core.errors import HoldfastError
from holdfast.flower import FedDig, FedTest, digest_mod, peer_test_mod

Spoil = Callable[[RecordDict], object]
STRATEGIES: dict[str, Callable[[], Any]] = {
    "fedtest": lambda: FedTest(fedavg(), testers=2),
    "feddig": lambda: FedDig(fedavg(), net, server_epochs=0),
    "feddig around fedtest": lambda: FedDig(FedTest(fedavg(), testers=2), net, server_epochs=0),
}


def with_bias(tensor: torch.Tensor) -> Spoil:
    def spoil(content: RecordDict) -> None:
        state = content["arrays"].to_torch_state_dict()
        content["arrays"] = ArrayRecord({**state, "bias": tensor})

    return spoil


def with_metrics(**metrics: Any) -> Spoil:
    return lambda content: content["metrics"].update({k.replace("_", "-"): v for k, v in metrics.items()})


SPOILS: dict[str, tuple[Spoil, str]] = {
    "nan": (with_bias(torch.full((3,), math.nan)), "bias is not finite"),
    "infinite": (with_bias(torch.full((3,), math.inf)), "bias is not finite"),
    "huge": (with_bias(torch.full((3,), 1e30)), "its norm 1.73e+30 is above the bound 1e+06"),
    "another shape": (with_bias(torch.zeros(2, 3)), "bias is float32 (2, 3), expected float32 (3,)"),
    "another type": (with_bias(torch.zeros(3, dtype=torch.float64)), "bias is float64 (3,), expected float32 (3,)"),
    "a name missing": (lambda content: content["arrays"].pop("bias"), "bias is missing"),
    "no model": (lambda content: content.pop("arrays"), "it holds 0 models and 1 sets of metrics"),
    "two models": (lambda content: content.update({"more": content["arrays"]}), "it holds 2 models"),
    "no bytes": (
        lambda content: content["arrays"].update({"bias": Array("float32", (3,), "numpy.ndarray", b"")}),  # type: ignore[dict-item]
        "its model cannot be read",
    ),
    "no samples": (lambda content: content["metrics"].pop("num-examples"), "num-examples is None"),
    "nan samples": (with_metrics(num_examples=math.nan), "num-examples is nan"),
    "endless samples": (with_metrics(num_examples=1e300), "num-examples is 1e+300"),
    "other metrics": (with_metrics(extra=1.0), "'extra'"),
    "a list for a number": (with_metrics(train_loss=[1.0]), "'train-loss[1]'"),
}


def app_with(spoils: dict[int, Spoil], scores: Callable[[int, float], Any] = lambda site, bias: 0.8) -> ClientApp:
    """Sites that move the weights by their number plus one, some of whose replies are spoilt; a site scores a bias."""
    app = ClientApp(mods=[digest_mod(read, 3, spd=2), peer_test_mod()])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        site = int(context.node_config["partition-id"])
        state = {n: t + (site + 1.0) for n, t in message.content["arrays"].to_torch_state_dict().items()}
        metrics = MetricRecord({"num-examples": 8, "train_loss": 0.0, "train-loss": 0.0})
        content = RecordDict({"arrays": ArrayRecord(state), "metrics": metrics})
        spoils.get(site, lambda content: None)(content)
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        site = int(context.node_config["partition-id"])
        score = scores(site, float(message.content["arrays"].to_torch_state_dict()["bias"][0]))
        return Message(RecordDict({"metrics": MetricRecord({"eval_acc": score})}), reply_to=message)

    return app


@pytest.mark.parametrize("spoilt", SPOILS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_bad_update_is_refused_named_and_never_averaged(
    strategy: str, spoilt: str, caplog: pytest.LogCaptureFixture
) -> None:
    spoil, sentence = SPOILS[spoilt]
    state = start(STRATEGIES[strategy](), grid_of(app_with({2: spoil})))
    assert torch.allclose(state["bias"], torch.full((3,), 1.5))  # the mean of 1 and 2
    [line] = [
        record.message for record in caplog.records if record.levelno == logging.WARNING and "refused" in record.message
    ]
    assert "the update of node 102 is refused: " in line
    assert sentence in line
    assert "Received 2 results and 1 failures" in caplog.text


def test_the_digest_of_a_site_whose_update_is_refused_stands_in() -> None:
    spoils: dict[int, Spoil] = {}
    strategy = FedDig(fedavg(), net, server_epochs=0)
    start(strategy, grid_of(app_with(spoils)))
    assert "node-102" in strategy.digests
    spoils[2] = with_bias(torch.full((3,), math.nan))
    bias = start(strategy, grid_of(app_with(spoils)))["bias"]
    assert bias.isfinite().all()
    assert bias[2] > bias[0]  # what site 2's digest knows


def test_where_all_are_refused_the_model_stays() -> None:
    nan = with_bias(torch.full((3,), math.nan))
    seen: list[torch.Tensor] = []

    def watch(round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(arrays.to_torch_state_dict()["bias"])
        return MetricRecord()

    for make in STRATEGIES.values():
        start(make(), grid_of(app_with({0: nan, 1: nan, 2: nan})), 1, net, watch)
    assert len(seen) == 6  # before and after the round
    assert all(torch.equal(bias, torch.zeros(3)) for bias in seen)


def test_a_bound_of_ones_own() -> None:
    state = start(FedTest(fedavg(), testers=2, max_norm=7.0), grid_of(app_with({})))
    assert torch.allclose(state["bias"], torch.full((3,), 1.5))  # 3 in nine places is a norm of 9
    with pytest.raises(HoldfastError, match="max_norm must be positive"):
        FedDig(fedavg(), net, max_norm=0.0)


def test_counters_keep_their_type_over_the_rounds() -> None:
    app = ClientApp(mods=[peer_test_mod()])

    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))

    @app.train()
    def train(message: Message, context: Any) -> Message:
        model = normed()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        model(torch.randn(4, 2))
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 8})}
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"eval_acc": 0.5})}), reply_to=message)

    state = start(FedTest(fedavg()), grid_of(app), 3, normed)
    assert state["1.num_batches_tracked"].dtype == torch.int64
    assert int(state["1.num_batches_tracked"]) == 3  # one each round: nobody was refused


@pytest.mark.parametrize(
    ("nonsense", "sentence"),
    [
        (7.0, "it reports 7.0 for client"),
        (math.nan, "it reports nan for client"),
        (None, "it failed: "),
    ],
)
def test_a_tester_that_answers_nonsense_is_ignored_and_named(
    nonsense: float | None, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    def scores(site: int, bias: float) -> Any:
        if site != 1:
            return 0.8
        return 0.1 if bias < 2 and nonsense is not None else nonsense  # one value that could be, one that cannot

    strategy = FedTest(fedavg(), testers=3)
    start(strategy, grid_of(app_with({}, scores)))
    assert strategy.scores == {100: 0.8, 101: 0.8, 102: 0.8}
    [line] = [record.message for record in caplog.records if "tester" in record.message]
    assert "FedTest: tester 101 is ignored in this round: " in line
    assert sentence in line


def test_a_tester_that_does_not_answer_is_named(caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of(app_with({}))
    strategy = FedTest(fedavg(), testers=3)
    all_answer = grid.send_and_receive

    def lossy(messages: Any, *, timeout: float | None = None) -> Any:
        replies = list(all_answer(messages, timeout=timeout))
        return [r for r in replies if r.metadata.message_type == "train" or r.metadata.src_node_id != 100]

    grid.send_and_receive = lossy  # type: ignore[method-assign]
    start(strategy, grid)
    assert "tester 100 is ignored in this round: it did not answer" in caplog.text


def who_tests(strategy: FedTest, rounds: int) -> list[list[int]]:
    seen: list[list[int]] = []

    def watch(round: int, arrays: ArrayRecord) -> MetricRecord:
        if round:
            seen.append(list(strategy.testers))
        return MetricRecord()

    start(strategy, grid_of(app_with({}, lambda site, bias: bias / 1000)), rounds, net, watch)
    return seen


def test_testers_are_others_than_in_the_round_before() -> None:
    for before, after in zip(seen := who_tests(FedTest(fedavg(), testers=1), 8), seen[1:], strict=False):
        assert not set(before) & set(after)


def test_testers_can_rotate_or_be_those_with_the_best_scores() -> None:
    assert who_tests(FedTest(fedavg(), testers=2, choice="rotating"), 3) == [[100, 101], [100, 102], [101, 102]]
    # In the first round site 2's model is the best one, then site 1's.
    assert who_tests(FedTest(fedavg(), testers=2, choice="trusted"), 2)[1] == [101, 102]
    with pytest.raises(HoldfastError, match="known: random, rotating, trusted"):
        FedTest(fedavg(), choice="rotate")  # type: ignore[arg-type]


def test_the_power_adapts_to_how_the_models_fare() -> None:
    rounds = {1: 0.5, 2: 0.9, 3: 0.1}
    now = [0]

    def watch(round: int, arrays: ArrayRecord) -> MetricRecord:
        now[0] = round + 1
        powers.append(strategy.power)
        return MetricRecord()

    powers: list[float] = []
    strategy = FedTest(fedavg(), adapt=True)
    start(strategy, grid_of(app_with({}, lambda site, bias: rounds[now[0]])), 3, net, watch)
    assert powers == [4.0, 3.5, 3.0, 4.0]
