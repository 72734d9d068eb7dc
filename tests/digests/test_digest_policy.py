"""A house's policy and its ledger in `holdfast digest make`: what may leave, how mixed, and what was spent on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from digest_helpers import of_one_class, own_file, recipe, told
from typer.testing import CliRunner

from holdfast.cli.digest_making import make
from holdfast.cli.digesting import digest_app
from holdfast.core.errors import HoldfastError
from holdfast.data.named import load_task
from holdfast.privacy.gate import LEDGER
from holdfast.privacy.ledger import read_ledger


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return own_file(tmp_path)


def test_the_policy_of_the_house_is_kept(own: Path, tmp_path: Path) -> None:
    policy = tmp_path / "privacy.toml"
    policy.write_text('max_epsilon = 3.0\ndelta = 1e-5\nmodes = ["moments"]\n')
    with pytest.raises(HoldfastError, match="mode 'paper' is not allowed"):
        make(recipe(own), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    policy.write_text('max_epsilon = inf\ndelta = 1e-5\nmodes = ["paper"]\nmin_spd = 4\n')
    with pytest.raises(HoldfastError, match="spd"):
        make(recipe(own, spd=2), tmp_path / "out")
    make(recipe(own), tmp_path / "out")
    [entry] = read_ledger(tmp_path / "privacy-ledger.json").entries
    assert entry.what == "digest of fashion-mini, file out"


def test_without_a_policy_a_ledger_is_kept_beside_the_digest(
    own: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        make(recipe(own), tmp_path / "out" / name)
    assert "No policy says what may leave" in caplog.text
    assert len(read_ledger(tmp_path / "out" / LEDGER).entries) == 2


@pytest.mark.parametrize("delta", [0.5, 0.02])  # of 50 records
def test_a_delta_that_promises_little_must_be_insisted_upon(own: Path, tmp_path: Path, delta: float) -> None:
    wanted = recipe(own, encoder="scattering", mode="dp-label-public", delta=delta)
    with pytest.raises(HoldfastError, match="promises little; lower it, or insist with --large-delta"):
        make(wanted, tmp_path / "out" / "d")
    assert not (tmp_path / "out").exists()
    make(wanted, tmp_path / "out" / "d", large_delta=True)


@pytest.mark.parametrize(
    ("changes", "fewest"),
    [
        ({"remainder": "mix"}, 1),  # five samples: four, and one left over
        ({"weights": "1/0/0/0"}, 1),
        ({"weights": "0.98/0.01/0.005/0.005"}, 1),
        ({"weights": "random"}, 1),
        ({"weights": "0.5/0.5/0/0"}, 2),
    ],
)
def test_a_policys_least_mixture_holds_for_every_row_and_for_weights(
    changes: dict[str, object], fewest: int, tmp_path: Path
) -> None:
    five = of_one_class(tmp_path, 5)
    policy = tmp_path / "house" / "privacy.toml"
    policy.parent.mkdir()
    policy.write_text('max_epsilon = inf\ndelta = 1e-5\nmodes = ["paper"]\nmin_spd = 4\n')
    with pytest.raises(HoldfastError, match=f"mixes {fewest} records?, fewer than min_spd = 4; nothing was released"):
        make(recipe(five, **changes), tmp_path / "out", policy)
    assert not (tmp_path / "out").exists()
    assert not (policy.parent / "privacy-ledger.json").exists()
    make(recipe(five), tmp_path / "whole", policy)  # the remainder dropped
    make(recipe(five, **changes), tmp_path / "out")
    facts = told(tmp_path / "out")
    assert facts["fewest_mixed"] == fewest
    text = " ".join(facts["reveals"])
    assert "never one alone" not in text
    assert ("SINGLE sample" in text) == (fewest == 1)
    if fewest == 1:
        assert facts["guessing_index"]["worst"] == 0.0  # certain
        assert facts["guessing_index"]["paper_bound_holds"] is False


def test_a_remainder_costs_what_its_one_record_weighs(tmp_path: Path) -> None:
    """Scattering: 128 features of either sign; a row of one record has weight 1: 2 x 128 x 20,000 x 0.005."""
    five = of_one_class(tmp_path, 5)
    for remainder, cost in (("drop", 6400), ("mix", 25600)):
        make(recipe(five, encoder="scattering", epsilon=0.005, remainder=remainder), tmp_path / remainder)
        assert f"the features alone would cost {cost}." in " ".join(told(tmp_path / remainder)["reveals"])


@pytest.mark.parametrize("mode", ["dp-label-public", "dp-full"])
def test_a_mixture_of_more_than_there_are_is_refused_in_every_mode(mode: str, tmp_path: Path) -> None:
    three = of_one_class(tmp_path, 3)
    with pytest.raises(HoldfastError, match="4 samples per digest are more than the client's 3 samples; lower spd"):
        make(recipe(three, mode=mode, encoder="scattering"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_least_mixture_holds_in_modes_with_a_promise_too(own: Path, tmp_path: Path) -> None:
    (tmp_path / "privacy.toml").write_text(
        'max_epsilon = inf\ndelta = 1e-5\nmodes = ["dp-full", "dp-label-public"]\nmin_spd = 4\n'
    )
    five = of_one_class(tmp_path, 5)
    for mode in ("dp-full", "dp-label-public"):
        with pytest.raises(HoldfastError, match="mixes 1 record, fewer than min_spd = 4"):
            make(recipe(five, mode=mode, encoder="scattering"), tmp_path / "out")
    four = of_one_class(tmp_path, 4)
    make(recipe(four, mode="dp-label-public", encoder="scattering"), tmp_path / "labels")
    make(recipe(four, mode="dp-full", encoder="scattering", strategy="across"), tmp_path / "full")
    shown = CliRunner().invoke(digest_app, ["show", str(tmp_path / "full")])
    assert "4 in 1 digests: SpD 4, across classes" in " ".join(shown.output.split())
    facts = json.loads(CliRunner().invoke(digest_app, ["show", str(tmp_path / "full"), "--json"]).stdout)
    assert (facts["spd"], facts["samples"], facts["digests"], facts["fewest_mixed"]) == (4, 4, 1, 4)


@pytest.mark.parametrize(
    ("task", "shape", "fits"),
    [("fashion-mini", (60, 32, 32, 3), "(1, 28, 28)"), ("cifar10", (60, 28, 28), "(3, 32, 32)")],
)
def test_samples_of_another_shape_than_the_tasks_are_refused_before_anything_is_spent(
    task: str, shape: tuple[int, ...], fits: str, tmp_path: Path
) -> None:
    (tmp_path / "privacy.toml").write_text('max_epsilon = 9.0\ndelta = 1e-5\nmodes = ["moments"]\n')
    np.savez(tmp_path / "other.npz", x=np.zeros(shape, np.uint8), y=np.zeros(60, int))
    with pytest.raises(HoldfastError) as error:
        make(recipe(tmp_path / "other.npz", task=task, mode="moments", encoder="scattering"), tmp_path / "out")
    assert f"those of task {task!r} have {fits}; both must be alike" in str(error.value)
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "privacy-ledger.json").exists()


def test_moments_of_too_few_records_are_refused_before_anything_is_spent(tmp_path: Path) -> None:
    (tmp_path / "privacy.toml").write_text('max_epsilon = 9.0\ndelta = 1e-5\nmodes = ["moments"]\n')
    with pytest.raises(HoldfastError, match=r"3 records are fewer than its noise needs of a single class \(20\)"):
        make(recipe(of_one_class(tmp_path, 3), mode="moments", encoder="scattering"), tmp_path / "out")
    assert not (tmp_path / "privacy-ledger.json").exists()


def test_moments_that_noise_left_useless_are_paid_for_and_not_written(tmp_path: Path) -> None:
    """Twenty-four records, three of each of eight classes: none has the twenty that its noise needs."""
    (tmp_path / "privacy.toml").write_text('max_epsilon = 9.0\ndelta = 1e-5\nmodes = ["moments"]\n')
    train = load_task("fashion-mini").train
    index = torch.cat([(train.labels == c).nonzero().flatten()[:3] for c in range(8)])
    np.savez(tmp_path / "few.npz", x=train.inputs[0][index][:, 0].numpy(), y=train.labels[index].numpy())
    with pytest.raises(HoldfastError) as error:
        make(recipe(tmp_path / "few.npz", mode="moments", encoder="scattering"), tmp_path / "out")
    assert "no class has as many records as its noise needs" in str(error.value)
    ledger = tmp_path / "privacy-ledger.json"
    assert f"No file was written, but epsilon 3 was spent on finding this out, and is entered in {ledger}" in str(
        error.value
    )
    assert not (tmp_path / "out").exists()
    assert len(read_ledger(ledger).entries) == 1


def test_one_policy_has_one_ledger_wherever_the_digests_go(own: Path, tmp_path: Path) -> None:
    (tmp_path / "privacy.toml").write_text('max_epsilon = 4.0\ndelta = 1e-5\nmodes = ["moments"]\n')
    strict = recipe(own, mode="moments", encoder="scattering", bits="8")
    make(strict, tmp_path / "a" / "digest")
    with pytest.raises(HoldfastError, match="above max_epsilon = 4"):
        make(strict, tmp_path / "b" / "digest")
    elsewhere = tmp_path / "mine.toml"
    elsewhere.write_text('max_epsilon = 1.0\ndelta = 1e-5\nmodes = ["moments"]\n')
    with pytest.raises(HoldfastError, match="above max_epsilon = 4"):  # the house's ledger lies beside this one too
        make(strict, tmp_path / "c" / "digest", tmp_path / "privacy.toml")
    with pytest.raises(HoldfastError, match="above max_epsilon = 1"):
        make(strict, tmp_path / "c" / "digest", elsewhere)
