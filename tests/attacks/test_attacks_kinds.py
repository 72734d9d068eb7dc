"""Attacks on named tensors, data, test reports and digests."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_helpers import assert_same_run, experiment
from torch import nn

from holdfast.attacks import ATTACKS, backdoor_success, tamper_updates
from holdfast.attacks.data import Backdoor, LabelFlip
from holdfast.attacks.tensors import Malformed, Relayer
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.core.randomness import rng
from holdfast.data.task import Samples
from holdfast.play import resume, run
from holdfast.record import Record


def chosen(spec: str) -> Any:
    return choose(ATTACKS, Choice.parse(spec, "attack"), "attack")


def network(seed: int) -> nn.Sequential:
    with torch.random.fork_rng():  # the layers' own initialisation knows no other generator
        torch.manual_seed(seed)
        return _layers()


def _layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 9, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )


def test_relayer_keeps_the_function_and_wrecks_the_average() -> None:
    honest, trained = network(0), network(1)
    model = {name: tensor.detach().clone() for name, tensor in honest.named_parameters()}
    delta = {name: tensor.detach() - model[name] for name, tensor in trained.named_parameters()}
    attack = Relayer(5.0)
    assert attack.pairs(model) == [("0", "3"), ("3", "6"), ("6", "8")]
    (sent,) = tamper_updates(attack, [delta], [], model, rng(0, 1, 2, "attack"))
    disguised = {name: model[name] + tensor for name, tensor in sent.items()}
    images = torch.rand(5, 1, 12, 12, generator=rng(0, 0, 0, "images"))
    with torch.no_grad():
        before = trained(images)
        torch.testing.assert_close(torch.func.functional_call(trained, disguised, (images,)), before)
        own = {name: tensor.detach() for name, tensor in trained.named_parameters()}
        half = {name: (own[name] + disguised[name]) / 2 for name in own}
        after = torch.func.functional_call(trained, half, (images,))
    between_images = (before - before.mean(0)).abs().mean()
    assert (after - before).abs().mean() > 2 * between_images
    apart = [float((own[name] - disguised[name]).norm() / own[name].norm()) for name in own if "weight" in name]
    assert min(apart) > 0.5


def test_relayer_leaves_a_normalised_pair_alone_and_takes_named_layers() -> None:
    weights = {"a.weight": torch.ones(4, 2), "norm.weight": torch.ones(4), "b.weight": torch.ones(4, 4)}
    with pytest.raises(HoldfastError, match="no two layers that follow each other; name them"):
        Relayer().pairs(weights)
    assert Relayer(layers=("a", "b")).pairs(weights) == [("a", "b")]
    with pytest.raises(HoldfastError, match="no layer 'c'"):
        Relayer(layers=("a", "c")).pairs(weights)
    with pytest.raises(HoldfastError, match="as b/a says"):
        Relayer(layers=("b", "a")).pairs(weights)
    assert chosen("relayer:layers=conv1/conv2").layers == ("conv1", "conv2")


@pytest.mark.parametrize("fault", ["nan", "inf", "huge", "shape", "type", "missing", "extra", "empty"])
def test_malformed_differs_in_just_what_it_says(fault: Any) -> None:
    delta = {"w": torch.full((2, 2), 0.5), "b": torch.zeros(2)}
    (sent,) = tamper_updates(Malformed(fault), [delta], [], delta, rng(0, 0, 0, "attack"))
    finite = all(tensor.isfinite().all() for tensor in sent.values())
    same_shapes = {k: v.shape for k, v in sent.items()} == {k: v.shape for k, v in delta.items()}
    assert finite == (fault not in ("nan", "inf"))
    assert same_shapes == (fault in ("nan", "inf", "huge", "type"))
    expected = {
        "nan": lambda: sent["w"].isnan().sum() == 1,
        "inf": lambda: sent["w"].isinf().sum() == 1,
        "huge": lambda: sent["b"].min() > 1e38,
        "shape": lambda: sent["w"].shape == (5,),
        "type": lambda: not sent["w"].is_floating_point(),
        "missing": lambda: list(sent) == ["b"],
        "extra": lambda: list(sent) == ["w", "b", "intruder"],
        "empty": lambda: sent == {},
    }
    assert expected[fault]()
    assert delta["w"].eq(0.5).all()


def samples(n: int = 40) -> Samples:
    generator = rng(1, 0, 0, "samples")
    return Samples(
        (torch.randint(0, 200, (n, 1, 8, 8), generator=generator, dtype=torch.uint8),), torch.arange(n).remainder(4)
    )


def test_label_flip() -> None:
    flipped = LabelFlip().poison(samples(), 4, rng(0, 0, 0, "attack"))
    assert flipped.labels[:4].tolist() == [3, 2, 1, 0]
    assert chosen("labelflip:3-1/0-2").poison(samples(), 4, rng(0, 0, 0, "attack")).labels[:4].tolist() == [2, 1, 2, 1]
    soft = Samples(samples(1).inputs, torch.tensor([[0.5, 0.25, 0.125, 0.125]]))
    assert LabelFlip().poison(soft, 4, rng(0, 0, 0, "a")).labels.tolist() == [[0.125, 0.125, 0.25, 0.5]]
    assert LabelFlip(("3-1",)).poison(soft, 4, rng(0, 0, 0, "a")).labels.tolist() == [[0.5, 0.375, 0.125, 0.0]]
    with pytest.raises(HoldfastError, match="two classes with a dash between"):
        chosen("labelflip:7")
    with pytest.raises(HoldfastError, match="out of range for 4 classes"):
        LabelFlip(("7-1",)).poison(soft, 4, rng(0, 0, 0, "a"))


def test_backdoor_stamps_and_relabels_the_fraction_told() -> None:
    clean = samples()
    attack = Backdoor(target=2, fraction=0.25)
    dirty = attack.poison(clean, 4, rng(0, 0, 0, "attack"))
    stamped = (dirty.inputs[0][:, :, -3:, -3:] == 255).all(dim=(1, 2, 3))
    assert int(stamped.sum()) == 10
    assert (dirty.labels[stamped] == 2).all()
    assert torch.equal(dirty.labels[~stamped], clean.labels[~stamped])
    dirty.inputs[0][:, :, -3:, -3:] = clean.inputs[0][:, :, -3:, -3:]
    assert torch.equal(dirty.inputs[0], clean.inputs[0])  # nothing else was painted, and the clean ones are as before
    soft = Samples(clean.inputs, torch.full((40, 4), 0.25))
    assert attack.poison(soft, 4, rng(0, 0, 0, "a")).labels[:, 2].sum() == 10 + 30 * 0.25
    assert float(attack.stamp(torch.zeros(1, 1, 4, 4)).sum()) == 9.0
    with pytest.raises(HoldfastError, match="target 2 is out of range for 2 classes"):
        attack.poison(clean, 2, rng(0, 0, 0, "a"))
    with pytest.raises(HoldfastError, match="needs images"):
        attack.stamp(torch.zeros(5, 7))
    with pytest.raises(HoldfastError, match="fraction from 0 to 1"):
        chosen("backdoor:fraction=2")


def test_backdoor_success_counts_the_other_classes_only() -> None:
    """A model that says 2 where the corner is bright has fallen for all; one that always says 1 for none."""
    attack = Backdoor(target=2)

    def fallen(images: torch.Tensor) -> torch.Tensor:
        bright = (images[:, 0, -3:, -3:].mean(dim=(1, 2)) > 0.99).float()
        return torch.stack([1 - bright, torch.zeros_like(bright), bright], 1)

    assert backdoor_success(fallen, samples(), attack, batch=7) == 1.0
    assert backdoor_success(lambda x: torch.eye(4)[1].expand(len(x), 4), samples(), attack) == 0.0
    half = itertools.cycle([2, 0])
    predict = lambda x: torch.eye(4)[[next(half) for _ in x]]  # noqa: E731
    assert backdoor_success(predict, samples(), attack) == 0.5
    with pytest.raises(HoldfastError, match="no class but the target"):
        backdoor_success(fallen, samples().take(torch.tensor([2, 6])), attack)


def test_testers_lie() -> None:
    honest = {1: 0.8, 2: 0.1, 3: 0.95}
    generator = rng(0, 0, 0, "attack")
    assert chosen("liar").report(honest, {2}, generator) == {1: 0.0, 2: 1.0, 3: 0.0}
    assert chosen("colluder:0.1").report(honest, {2}, generator) == pytest.approx({1: 0.7, 2: 1.0, 3: 0.85})
    assert chosen("colluder:0.5").report({}, {2}, generator) == {}
    assert chosen("nonsense").report(honest, {2}, generator) == {1: 7.0, 2: 7.0, 3: 7.0}
    assert chosen("nonsense:negative").report(honest, set(), generator)[3] == -1.0
    assert all(math.isnan(value) for value in chosen("nonsense:nan").report(honest, {2}, generator).values())
    assert chosen("nonsense:inf").report(honest, {2}, generator)[1] == math.inf
    assert chosen("nonsense:missing").report(honest, {2}, generator) == {}
    assert chosen("nonsense:unknown").report(honest, {2}, generator) == {-2: 0.8, -3: 0.1, -4: 0.95}
    drawn = chosen("nonsense:random").report(honest, {2}, generator)
    assert list(drawn) == [1, 2, 3]
    assert len(set(drawn.values())) == 3
    assert all(0 <= value < 1 for value in drawn.values())


def test_digests_are_spoiled() -> None:
    features, labels = torch.tensor([[3.0, -4.0]]), torch.tensor([[0.5, 0.25, 0.25]])
    generator = rng(0, 0, 0, "attack")
    negated, kept = chosen("baddigest").spoil(features, labels, 3, generator)
    assert negated.tolist() == [[-3.0, 4.0]]
    assert torch.equal(kept, labels)
    assert chosen("baddigest:scale=2").spoil(features, labels, 3, generator)[0].tolist() == [[-6.0, 8.0]]
    many = torch.full((4_000, 2), 2.0)
    noisy, _ = chosen("baddigest:manner=noise,scale=3").spoil(many, labels, 3, generator)
    assert float(noisy.std()) == pytest.approx(6.0, rel=0.03)
    assert float(noisy.mean()) == pytest.approx(2.0, abs=0.2)
    kept, swapped = chosen("falsedigest").spoil(features, labels, 3, generator)
    assert torch.equal(kept, features)
    assert swapped.tolist() == [[0.25, 0.25, 0.5]]
    assert chosen("falsedigest").spoil(features, torch.tensor([0]), 3, generator)[1].tolist() == [2]


@pytest.mark.parametrize("every", [1, 3])
def test_a_free_rider_that_looks_back_resumes_to_the_same_bits(every: int, tmp_path: Path) -> None:
    wanted = experiment(attack="freerider:previous", attackers=1, rounds=7, checkpoint_every=every)

    def stop(record: Record) -> None:
        if record.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(wanted, tmp_path / "out", stop)
    assert_same_run(resume(tmp_path / "out"), run(wanted))
    run(experiment(attack="signflip", attackers=1, rounds=1), tmp_path / "other")
    assert not (tmp_path / "other" / "hostile").exists()  # only who looks back keeps anything
