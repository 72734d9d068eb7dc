"""Local optimisers and schedules: torch's own as the oracle, what a client keeps, what is refused before round 1."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from algorithms_bench import Bench, plain
from engine_helpers import assert_same_run, experiment, interrupted
from torch import nn

from holdfast.algorithms import FedAvg
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.data.task import Samples
from holdfast.learning.loop import batches, train
from holdfast.learning.objective import TaskLoss
from holdfast.learning.optimizers import Adam, AdamW
from holdfast.learning.schedules import SCHEDULES, Constant, Cosine, Step
from holdfast.learning.settings import Learning, Optimizer, Sgd
from holdfast.play import resume, run
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment

SAMPLES = Samples((torch.randn(40, 6, generator=torch.Generator().manual_seed(1)),), torch.arange(40) % 3)
TORCHS = {
    "sgd": (Sgd(), torch.optim.SGD, {"momentum": 0.9}),
    "adam": (Adam(beta1=0.8, beta2=0.95, eps=1e-6), torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-6}),
    "adamw": (AdamW(), torch.optim.AdamW, {}),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@dataclass(frozen=True)
class Signs(Optimizer):
    """A user's own: steps of lr in the sign of the gradient."""

    def step(self, weight, gradient, state, learning):  # type: ignore[no-untyped-def]
        weight.sub_(gradient.sign(), alpha=learning.lr)


@dataclass(frozen=True)
class Clumsy(Optimizer):
    def step(self, weight, gradient, state, learning):  # type: ignore[no-untyped-def]
        weight.sub_(state["speed"])


def rising(round: int, rounds: int) -> float:
    return (round + 1) / rounds


def falling(round: int, rounds: int) -> float:
    return 1 - round


@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("clip", [None, 0.2])
def test_twenty_steps_are_torchs_to_the_bit(name: str, decay: float, clip: float | None) -> None:
    optimizer, kind, options = TORCHS[name]
    ours, theirs = network(), network()
    learning = Learning(4, 8, 0.01, 0.9, decay, optimizer, clip)
    steps, _ = train(ours, SAMPLES, learning, torch.Generator().manual_seed(5), TaskLoss(nn.functional.cross_entropy))
    oracle, order = kind(theirs.parameters(), lr=0.01, weight_decay=decay, foreach=False, **options), torch.Generator()
    order.manual_seed(5)
    for _ in range(4):
        for index in batches(torch.randperm(40, generator=order), 8):
            oracle.zero_grad()
            nn.functional.cross_entropy(theirs(SAMPLES.inputs[0][index]), SAMPLES.labels[index]).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(theirs.parameters(), clip)
            oracle.step()
    assert steps == 20
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0 if clip is None else 1e-7)


def test_clipping_is_of_the_loss_and_not_of_the_algorithms_correction() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    one = Samples((torch.ones(1, 1),), torch.full((1, 1), 100.0))  # the loss's gradient is -200
    learning = Learning(batch_size=1, lr=1.0, momentum=0.0, clip_norm=2.0)
    train(
        model,
        one,
        learning,
        torch.Generator(),
        TaskLoss(nn.functional.mse_loss),
        lambda name, weight: torch.tensor([[-5.0]]),
    )
    assert float(model.weight.detach()) == pytest.approx(2.0 + 5.0, abs=1e-4)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox:0.1", "feddyn:0.1", "adabest"])
def test_adam_works_with_what_is_added_to_gradients(algorithm: str) -> None:
    usual = {"algorithm": algorithm, "workers": 0, "lr": 0.01}
    histories = [run(experiment(optimizer=name, **usual)) for name in ("sgd", "adam")]
    assert histories[1].final_accuracy > 0.3
    assert not torch.equal(*(next(iter(h.state.model.values())) for h in histories))  # type: ignore[union-attr]


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "test_optimizers:Signs", {"name": "sgd", "keep": True}])
@pytest.mark.parametrize("algorithm", ["fednova", "scaffold"])
def test_an_algorithm_that_needs_sgds_reach_is_refused_with_others(algorithm: str, optimizer: object) -> None:
    with pytest.raises(HoldfastError, match=f"optimizer: {algorithm} divides by how far SGD's steps reach"):
        make_plan(experiment(algorithm=algorithm, optimizer=optimizer))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"optimizer": "adma"}, "optimizer: 'adma' is not known; did you mean 'adam'?"),
        ({"optimizer": "adam:beta3=1"}, "'adam' has no option 'beta3'"),
        ({"optimizer": "adam:beta1=1"}, "beta1 and beta2 must be in"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum is of 'sgd', and adam has beta1 in its place"),
        ({"optimizer": "holdfast.algorithms:FedAvg"}, "derive a class from holdfast.learning.settings.Optimizer"),
        ({"optimizer": "test_optimizers:Clumsy"}, "does not work here (KeyError: 'speed')"),
        ({"schedule": "cosinus"}, "schedule: 'cosinus' is not known; did you mean 'cosine'?"),
        ({"schedule": "step"}, "'step' needs the option 'every'"),
        ({"schedule": "step:0"}, "every must be at least 1"),
        ({"schedule": "cosine:warmup=-1"}, "warmup must not be negative"),
        ({"schedule": "cosine:per_step=true", "algorithm": "fednova"}, "one lr for all steps of a round"),
        ({"schedule": "test_optimizers:falling"}, "makes lr 0.05 x 0 in round 2; it must stay positive"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_round_1(keys: dict[str, object], says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        make_plan(experiment(**keys))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_schedules_round_by_round() -> None:
    def factors(name: str, rounds: int) -> list[float]:
        schedule = choose(SCHEDULES, Choice.parse(name, "schedule"), "schedule")
        return [round(schedule(t, rounds), 3) for t in range(rounds)]

    assert factors("cosine", 3) == [1.0, 0.75, 0.25]
    assert factors("cosine:warmup=2", 5) == [0.333, 0.667, 1.0, 0.75, 0.25]
    assert factors("step:every=2,factor=0.5,warmup=1", 6) == [0.5, 1.0, 1.0, 0.5, 0.5, 0.25]
    assert factors("test_optimizers:rising", 2) == [0.5, 1.0]


@pytest.mark.parametrize("schedule", [Cosine(per_step=True), Cosine(per_step=True, warmup=1), Step(1, per_step=True)])
def test_a_schedule_from_step_to_step_is_that_of_one_long_training(schedule: Constant) -> None:
    """One client of four steps a round, without momentum: three rounds are twelve steps of gradient descent."""
    bench = Bench(FedAvg(), [8.0], [4], plain(0.5), rounds=3, schedule=schedule)
    bench.clients[0] = replace(bench.clients[0], schedule=schedule, rounds=3)
    w = 0.0
    for step in range(12):
        t = step / 4
        factor = 0.1 ** (step // 4) if isinstance(schedule, Step) else (1 + math.cos(math.pi * t / 3)) / 2
        if schedule.warmup:
            factor = (t + 1) / 2 if t < 1 else (1 + math.cos(math.pi * (t - 1) / 2)) / 2
        w -= 0.5 * factor * (w - 8.0)
        if step % 4 == 3:
            assert bench.play() == pytest.approx(w, rel=1e-5)


def test_clients_and_stand_ins_of_a_run_follow_it() -> None:
    plan = make_plan(experiment(schedule="cosine:per_step=true", rounds=2))
    learning = plan.method.learning_in(1)
    assert learning.within is not None
    assert learning.within(0.5) == pytest.approx((1 + math.cos(0.75 * math.pi)) / (1 + math.cos(0.5 * math.pi)))
    client = plan.client(0, plan.model(), None)
    assert (client.schedule, client.rounds) == (plan.method.schedule, 2)


def test_a_schedule_reaches_the_clients() -> None:
    history = run(experiment(workers=0, rounds=2, schedule="step:every=1,factor=1e-6", evaluate_every=9))
    plain = run(experiment(workers=0, rounds=1, evaluate_every=9))
    assert history.state is not None
    assert plain.state is not None
    for name, weight in history.state.model.items():  # the second round hardly moves
        torch.testing.assert_close(weight, plain.state.model[name], atol=1e-6, rtol=0)


def test_new_keys_leave_old_fingerprints_alone() -> None:
    usual = Experiment(encoder=Choice("scattering"))  # what 0.1.0 had unless told
    assert usual.fingerprint == "c8d909d94e1cb665051a14a7490bc2be6e6ed57695355ca0afa359ae0857c371"  # as of 0.1.0
    same = replace(usual, optimizer="sgd", server_optimizer="none", selection="all", clip_norm=None)  # type: ignore[arg-type]
    assert same.fingerprint == usual.fingerprint
    used = {"optimizer": "adam", "server_optimizer": "adam", "selection": "uniform:2", "clip_norm": 1.0}
    assert len({replace(usual, **{key: value}).fingerprint for key, value in used.items()}) == 4  # type: ignore[arg-type]


KEPT = {"name": "adam", "keep": True}


@pytest.mark.parametrize("optimizer", ["adam", KEPT, {"name": "sgd", "keep": True}, "test_optimizers:Signs"])
def test_the_same_bits_with_workers_and_after_a_resume(optimizer: object, tmp_path: Path) -> None:
    keys = {"optimizer": optimizer, "algorithm": "feddyn:0.1", "scenario": "dropout:0.3", "rounds": 5, "lr": 0.01}
    reference = run(experiment(workers=0, **keys))
    assert_same_run(run(experiment(workers=2, **keys)), reference)
    interrupted(experiment(workers=0, **keys), tmp_path / "run", after=3)
    assert_same_run(resume(tmp_path / "run"), reference)


def test_what_is_kept_goes_on_and_an_update_that_did_not_count_leaves_no_trace() -> None:
    from holdfast.core.types import Message, pack
    from holdfast.engines.inline import Inline

    plan = make_plan(experiment(optimizer=KEPT, workers=0))
    client, start = plan.client(0, plan.model(), None), plan.start()
    federation = Inline({0: client})

    def ask(round: int, accepted: int) -> dict[str, torch.Tensor]:
        tensors = pack(model=start.model, buffers=start.buffers)
        [reply] = federation.ask(
            [Message(0, round, "train", tensors, {"accepted": accepted, "lr": 0.01, "digest": False})]
        )
        return copy.deepcopy(reply.tensors)  # type: ignore[union-attr]

    def found(round: int) -> int:
        """The steps that the state of this round has seen."""
        return next(int(t) for n, t in client.memory.read(round).items() if n.endswith("/steps"))

    ask(0, -1)
    once = found(0)
    assert once == plan.method.learning.steps(len(client.train))
    ask(1, 0)
    assert found(1) == 2 * once
    again = ask(2, 0)  # round 1 was refused: its state is the one after round 0
    assert found(2) == 2 * once
    assert found(0) == once
    federation = Inline({0: plan.client(0, plan.model(), None)})
    ask(0, -1)
    assert all(torch.equal(again[name], tensor) for name, tensor in ask(2, 0).items())


def test_dp_sgd_takes_any_optimiser_since_what_follows_noise_is_post_processing() -> None:
    pytest.importorskip("opacus")
    keys = {"protect": "dp-sgd:epsilon=8", "optimizer": "adam", "clip_norm": 1.0, "lr": 0.01}
    history = run(experiment(workers=0, rounds=2, **keys))
    assert [record.absent for record in history.records] == [{}, {}]
    assert history.accuracy
