"""Methods for comparison: numbers derived by hand, through the real round; oracles of scipy and autograd."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from algorithms_bench import Bench, plain
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.nn import functional

from holdfast.absence import AbsencePolicy
from holdfast.algorithms.fedavg import FedAvg, Work
from holdfast.core.errors import HoldfastError
from holdfast.core.rivals import RIVALS, rival
from holdfast.core.types import State, Tensors, Update
from holdfast.data.task import Samples
from holdfast.learning.objective import TaskLoss
from holdfast.learning.settings import Learning
from holdfast.models.networks import fill
from holdfast.play import run
from holdfast.rivals.cfed import CFeD
from holdfast.rivals.classweights import ClassWeights
from holdfast.rivals.ensemble import votes
from holdfast.rivals.fedau import FedAU
from holdfast.rivals.fedmix import FedMix, NaiveMix
from holdfast.rivals.fedstale import FedStale
from holdfast.rivals.fedvarp import FedVARP
from holdfast.rivals.foolsgold import foolsgold
from holdfast.rivals.friends import Friends
from holdfast.rivals.gradma import GradMA, Projected, project
from holdfast.rivals.memory import Memory
from holdfast.rivals.moon import Contrast, Moon
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment

# Named in the two papers or strong beside them, and useful enough to be no mere rivals.
ELSEWHERE = [
    "arc",
    "bucketing",
    "by-speed",
    "demoa",
    "fedbn",
    "k-centres",
    "lac",
    "mime",
    "mimelite",
    "oneshot",
    "tiers",
]
SMALL = {"task": "fashion-mini", "samples": 200, "clients": 2, "rounds": 3, "model": "features", "workers": 0}


class Uniform(FedAvg):
    """FedAvg with the weights that these papers print."""

    weights = "uniform"


def bench_with(absence: AbsencePolicy, **keys: object) -> Bench:
    bench = Bench(Uniform(), **keys)
    bench.method = replace(bench.method, absence=absence)
    return bench


def test_mifa_replays_the_last_update_and_drifts_once_all_have_left() -> None:
    # Two steps' worth: client 0 (target 4, one step) sends 0.5 x 4 = 2, client 1 (target 0) sends 0: w = 1.
    bench = bench_with(Memory(), targets=[4, 0], samples=[1, 1], learning=plain(0.5), away=((0, 2, 9), (1, 3, 9)))
    assert bench.play() == 1
    # Client 0 is away: its 2 counts again; client 1 sends 0.5 x (0 - 1) = -0.5: w = 1 + (2 - 0.5) / 2.
    assert bench.play() == 1.75
    # All have left: the same (2 - 0.5) / 2 in every round, without end.
    assert [bench.play() for _ in range(3)] == [2.5, 3.25, 4.0]
    assert bench.record.stand_ins == [0, 1]


def test_decay_ends_the_drift_and_who_was_never_heard_counts_as_zero() -> None:
    bench = bench_with(Memory(0.5), targets=[4, 0], samples=[1, 1], learning=plain(0.5), away=((0, 2, 9), (1, 1, 9)))
    assert bench.play() == 1  # (2 + 0) / 2
    assert [bench.play() for _ in range(3)] == [1.5, 1.75, 1.875]  # 1 x (1/2 + 1/4 + 1/8)


def test_memory_is_replayed_at_the_rate_of_today() -> None:
    class Halved:
        def __call__(self, round: int, rounds: int) -> float:
            return 0.5**round

    bench = bench_with(
        Memory(), targets=[4, 0], samples=[1, 1], learning=plain(0.5), away=((0, 2, 9), (1, 2, 9)), schedule=Halved()
    )
    assert [bench.play() for _ in range(2)] == [1, 1.5]


def test_friends_send_twice() -> None:
    # Clients 0 and 1 pull up, client 2 down; when 0 is away its friend 1 counts twice.
    bench = bench_with(Friends(), targets=[8, 4, -6], samples=[1, 1, 1], learning=plain(0.5), away=((0, 2, 9),))
    assert bench.play() == pytest.approx(1)  # (4 + 2 - 3) / 3
    assert bench.play() == pytest.approx(1 + (1.5 + 1.5 - 3.5) / 3)
    assert bench.record.stand_ins == [0]


@pytest.mark.parametrize("algorithm", [FedVARP(), FedStale(1.0), FedStale(0.0)], ids=str)
def test_with_everybody_there_old_updates_change_nothing(algorithm: FedAvg) -> None:
    found, plain_ones = (Bench(a, [4, 0], [1, 1], plain(0.5)) for a in (algorithm, Uniform()))
    assert [found.play() for _ in range(3)] == [plain_ones.play() for _ in range(3)]


def test_fedvarp_and_fedstale_when_one_is_away() -> None:
    # Round 1: D = 2 and 0, w = 1. Round 2 without client 0: D_1 = -0.5, so (-0.5 - 0) + (2 + 0) / 2 = 0.5.
    bench = Bench(FedVARP(), [4, 0], [1, 1], plain(0.5), away=((0, 2, 9),))
    assert [bench.play() for _ in range(2)] == [1, 1.5]
    # FedStale: beta/2 x 2 + (1/2)(1/1)(-0.5) = 0.5 - 0.25; client 1 answered in all rounds.
    bench = Bench(FedStale(0.5), [4, 0], [1, 1], plain(0.5), away=((0, 2, 9),))
    assert [bench.play() for _ in range(2)] == [1, 1.25]
    gone = bench.state.without([0])
    assert not [name for name in gone.algorithm if name.startswith("memory/0/")]


def test_fedau_counts_a_rare_client_by_its_mean_interval() -> None:
    # Round 1: (2 + 0) / 2. Round 2 without client 0: -0.5 / 2. Round 3: D = 1.625 and -0.375, and client 0's interval
    # of two rounds ends, so it counts from the next on: 0.75 + 1.25 / 2. Round 4: (1.5 x 1.3125 - 0.6875) / 2 more.
    bench = Bench(FedAU(), [4, 0], [1, 1], plain(0.5), away=((0, 2, 3),))
    assert [bench.play() for _ in range(4)] == [1, 0.75, 1.375, 2.015625]


def test_fedvarp_and_fedau_over_thirty_rounds_are_what_a_plain_loop_gives() -> None:
    chance = np.random.default_rng(7)
    there = chance.random((30, 4)) < [0.9, 0.5, 0.3, 0.1]
    sent = chance.normal(size=(30, 4))  # what each would send; one weight, so that all is plain arithmetic
    models = {"fedvarp": 0.0, "fedau": 0.0}
    table, since = np.zeros(4), np.zeros(4, int)
    intervals: list[list[int]] = [[] for _ in range(4)]
    found = {name: {"w": torch.zeros(1, dtype=torch.float64)} for name in models}
    kept: dict[str, Tensors] = {name: {} for name in models}
    for now, values in zip(there, sent, strict=True):
        if not now.any():
            continue  # a round in which nobody answers changes nothing, nor counts
        mean = table.mean()
        fresh = [values[i] - table[i] for i in range(4) if now[i]]
        models["fedvarp"] += sum(fresh) / len(fresh) + mean
        models["fedau"] += sum(np.mean(intervals[i] or [1]) * values[i] for i in range(4) if now[i]) / 4
        table = np.where(now, values, table)
        for i in range(4):
            since[i] += 1
            if now[i] or since[i] >= 5:
                intervals[i].append(since[i])
                since[i] = 0
        updates = [Update(i, {"w": torch.tensor([values[i]])}, samples=1, steps=1) for i in range(4) if now[i]]
        for name, algorithm in (("fedvarp", FedVARP()), ("fedau", FedAU(longest=5))):
            weights = [1 / len(updates)] * len(updates)
            model, memory = algorithm.aggregate(found[name], updates, weights, kept[name], 4, Learning())
            found[name], kept[name] = model, memory
    for name in models:
        assert float(found[name]["w"]) == pytest.approx(models[name], rel=1e-5)


def test_the_ensemble_votes_with_the_last_models_of_those_who_left() -> None:
    now, left = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [3.0]])
    state = State(1, {"weight": now}, {}, {}, absence={"memory/1/weight": left}, trust={})
    test = Samples((torch.ones(1, 1),), torch.zeros(1, dtype=torch.int64))
    model = nn.Linear(1, 2, bias=False)
    there, gone = torch.tensor([1.0, 0.0]).softmax(0), torch.tensor([0.0, 3.0]).softmax(0)
    torch.testing.assert_close(votes(model, state, [1], 2, test)[0], (there + gone) / 2)
    torch.testing.assert_close(votes(model, state, [0, 1], 2, test)[0], gone)  # nobody is there: who left speaks alone


def test_projection_is_what_a_solver_finds() -> None:
    chance = np.random.default_rng(0)
    for rho in (0.0, 0.1):
        m, rows = chance.normal(size=6), chance.normal(size=(4, 6))
        least = rho * np.linalg.norm(m) * np.linalg.norm(rows, axis=1)
        limits = [{"type": "ineq", "fun": lambda z, r=row, b=b: r @ z - b} for row, b in zip(rows, least, strict=True)]
        wanted = minimize(lambda z, m=m: ((z - m) ** 2).sum() / 2, m, constraints=limits, tol=1e-12).x
        found = project(torch.tensor(m), torch.tensor(rows), rho).numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_gradma_at_the_moderator_by_hand() -> None:
    # Round 1: g = (-2, 0): m = -1, nobody objects: w = 1. Round 2: g = (-1.5, 0.5), m = 0.5 x -1 - 0.5 = -1;
    # G_0 = -2 / 2 - 1.5 = -2.5 agrees with -1, G_1 = 0.5 objects: what neither objects to is 0, so w stays at 1.
    bench = Bench(GradMA(client=False), [4, 0], [1, 1], plain(0.5))
    assert [bench.play() for _ in range(2)] == [1, 1]


def test_gradma_at_the_client_steps_along_the_projected_gradient() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(3, 2), torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    start, last = ({n: torch.randn_like(w) for n, w in model.named_parameters()} for _ in range(2))
    loss = Projected(TaskLoss(), start, last)(model, (x,), y)
    loss.backward()
    found = torch.cat([w.grad.flatten() for w in model.parameters()])
    own = grad_at(model, dict(model.named_parameters()), x, y)
    rows = [grad_at(model, start, x, y), grad_at(model, last, x, y)]
    rows.append(torch.cat([(w - start[n]).flatten() for n, w in model.named_parameters()]).detach())
    torch.testing.assert_close(found, project(own, torch.stack(rows)))
    assert all(float(found @ row) > -1e-5 for row in rows)
    torch.testing.assert_close(loss, functional.cross_entropy(model(x), y))


def grad_at(model: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    there = {n: w.detach().clone().requires_grad_() for n, w in weights.items()}
    loss = functional.cross_entropy(functional.linear(x, there["weight"], there["bias"]), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(there.values()))])


def test_moon_is_the_printed_loss_and_forgets_a_model_of_long_ago() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    moon = Moon(mu=2.0, tau=0.5).fitted(model)
    assert moon.layer == "2"
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
    start, last = ({n: torch.randn_like(w) for n, w in model.named_parameters()} for _ in range(2))
    z, near, far = (
        torch.relu(functional.linear(x, w["0.weight"], w["0.bias"])) for w in (model.state_dict(), start, last)
    )
    a, b = (torch.exp(functional.cosine_similarity(z, other) / 0.5) for other in (near, far))
    wanted = functional.cross_entropy(model(x), y) - 2 * torch.log(a / (a + b)).mean()
    torch.testing.assert_close(Contrast(moon, TaskLoss(), start, last)(model, (x,), y), wanted)
    delta = {n: last[n] - start[n] for n in start}
    memory = moon.remember(delta, Work(0, 1, -1, Learning(), start), {"rounds": torch.tensor([4.0])}, {})
    task = TaskLoss()
    assert isinstance(moon.objective(task, start, {"rounds": torch.tensor([5.0])}, memory), Contrast)
    assert moon.objective(task, start, {"rounds": torch.tensor([6.0])}, memory) is task  # it was away meanwhile
    with pytest.raises(HoldfastError, match="learns none"):
        Moon().fitted(nn.Linear(3, 2))


def test_fedmix_is_naivemix_to_first_order_whatever_the_batch() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3).double(), torch.randn(8, 4).double(), torch.randint(3, (8,))
    average, label = torch.randn(8, 4).double(), torch.softmax(torch.randn(8, 3).double(), dim=1)
    for each in (False, True):
        task, gaps = TaskLoss(each=each), []
        for share in (0.02, 0.01):
            one, other = (kind(share).mixed(task, model, x, y, average, label) for kind in (FedMix, NaiveMix))
            gaps.append(float((one - other).abs().mean().detach()))
        assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.2)  # second order; eight times too small a term: first


def test_naivemix_is_the_loss_of_mixed_records() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.randint(3, (8,))
    average, label = torch.randn(8, 4), torch.softmax(torch.randn(8, 3), dim=1)
    soft = 0.8 * functional.one_hot(y, 3) + 0.2 * label  # cross-entropy is linear in the labels
    wanted = functional.cross_entropy(model(0.8 * x + 0.2 * average), soft)
    torch.testing.assert_close(NaiveMix(0.2).mixed(TaskLoss(), model, x, y, average, label), wanted)


def test_fsl_is_gradient_descent_on_the_moderators_samples() -> None:
    plan = make_plan(Experiment(**SMALL, absence="fsl:samples=20,steps=1,gamma=0.5", batch_size=20, momentum=0.0))
    before, own, model = plan.start(), plan.method.own_samples(20), plan.model()
    after = plan.method.absence.server_step(before, before, [], plan.method)
    fill(model, before.model, before.buffers)
    functional.cross_entropy(model(*own.inputs), own.labels).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(after.model[name], (weight - 0.5 * plan.experiment.lr * weight.grad).detach())


def test_class_weights_are_those_of_torch() -> None:
    model, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    counts = torch.tensor([5.0, 2.0, 1.0])
    found = ClassWeights().objective(TaskLoss(), {}, {"counts": counts}, {})(model, (x,), y)
    losses = functional.cross_entropy(model(x), y, reduction="none")
    torch.testing.assert_close(found, (losses * (8 / 3 / counts)[y]).mean())


def test_cfed_distils_without_labels() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3), torch.randn(8, 4)
    said = torch.softmax(torch.randn(8, 3), dim=1)
    wanted = -0.1 * (said * torch.log_softmax(model(x) / 2, dim=1)).sum(1).mean()
    torch.testing.assert_close(CFeD().distil(model, (x,), said), wanted)


def test_cfeds_teachers_take_turns_from_record_to_record_and_the_old_model_is_one() -> None:
    plan = make_plan(Experiment(**SMALL, absence="cfed:samples=20", batch_size=20, momentum=0.0))
    before, own, model = plan.start(), plan.method.own_samples(20), plan.model()
    shifts = [{name: 0.1 * torch.randn_like(weight) for name, weight in before.model.items()} for _ in range(2)]
    updates = [Update(client, shift, samples=1, steps=1) for client, shift in enumerate(shifts)]
    after = plan.method.absence.server_step(before, before, updates, plan.method)
    teachers = [{n: before.model[n] + shift[n] for n in shift} for shift in shifts] + [dict(before.model)]
    said = []
    for record in range(20):
        fill(model, teachers[record % 3], before.buffers)
        said.append(torch.softmax(model(own.inputs[0][record : record + 1]) / 2, dim=1).detach())
    fill(model, before.model, before.buffers)
    student = torch.log_softmax(model(*own.inputs) / 2, dim=1)
    (-0.1 * (torch.cat(said) * student).sum() / 20).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(after.model[name], (weight - plan.experiment.lr * weight.grad).detach())


def test_foolsgold_is_the_published_loop() -> None:
    rows = np.random.default_rng(1).normal(size=(5, 3)) + 1
    like = rows @ rows.T / np.outer(np.linalg.norm(rows, axis=1), np.linalg.norm(rows, axis=1)) - np.eye(5)
    most = like.max(1)
    for i in range(5):
        for j in range(5):
            if i != j and most[i] < most[j]:
                like[i, j] *= most[i] / most[j]
    wv = np.clip(1 - like.max(1), 0, 1)
    wv = np.where(wv == wv.max(), 0.99, wv / wv.max())
    wanted = np.clip(np.log(wv / (1 - wv)) + 0.5, 0, 1)
    np.testing.assert_allclose(foolsgold(torch.tensor(rows)).numpy(), wanted, atol=1e-6)
    assert foolsgold(torch.ones(3, 2)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("key", RIVALS)
def test_every_rival_is_played_through_an_absence(key: str) -> None:
    for name in RIVALS[key]:
        keys = {key: name}
        if key == "algorithm":
            keys |= {"absence": rival(key, name).needs_absence or "none"}
        if name == "mafl":
            continue  # with the algorithms that listen to it
        history = run(Experiment(**SMALL, **keys, scenario="intervals:away=[[0, 2, 3]]"))
        assert history.final_accuracy > 0.2, name


@pytest.mark.parametrize("name", sorted({name for known in RIVALS.values() for name in known} | {*ELSEWHERE}))
def test_every_page_says_where_the_rule_was_read_and_what_checks_it(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods" / f"{name}.md").read_text()
    assert "**Read**: " in page
    assert "**Checked against** " in page
    assert "**Measured**" in page


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(HoldfastError, match="absence = 'mafl'"):
        make_plan(Experiment(**SMALL, algorithm="fedmix"))
    with pytest.raises(HoldfastError, match="say algorithm = 'fedmix'"):
        make_plan(Experiment(**SMALL, absence="mafl")).start()
    with pytest.raises(HoldfastError, match="did you mean"):
        make_plan(Experiment(**SMALL, absence="memry"))
    with pytest.raises(HoldfastError, match="decay must lie"):
        make_plan(Experiment(**SMALL, absence="memory:2"))
