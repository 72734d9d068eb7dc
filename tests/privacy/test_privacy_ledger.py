"""Composition against dp-accounting, and a ledger and policy that refuse before anything leaves."""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from holdfast.core.errors import HoldfastError
from holdfast.digests import moments as summary
from holdfast.privacy import accounting, claim, ledger, noise
from holdfast.privacy.calibration import gaussian_ratio
from holdfast.privacy.claim import Claim
from holdfast.privacy.ledger import Ledger, Policy

DELTA = 1e-5


def gaussian_claim(epsilon: float = 1.0, spd: int = 0) -> Claim:
    return Claim(
        mode="moments",
        adjacency=claim.REPLACE_ONE,
        epsilon_nominal=epsilon,
        epsilon_features=epsilon,
        epsilon_labels=epsilon,
        epsilon_total=epsilon,
        delta=DELTA,
        noise="discrete gaussian",
        scale=1000.0,
        sensitivity=1000.0 * gaussian_ratio(epsilon, DELTA),
        grid="",
        clip=1.0,
        entropy=noise.SYSTEM,
        spd=spd,
        ratio=gaussian_ratio(epsilon, DELTA),
    )


def pure_claim(epsilon: float = 1.0) -> Claim:
    return dataclasses.replace(
        gaussian_claim(), mode="dp-full", epsilon_total=epsilon, delta=0.0, ratio=0.0, epsilon_pure=epsilon, spd=4
    )


POLICY = Policy(max_epsilon=3.0, delta=DELTA, modes=("moments", "dp-full"), min_spd=4)


def test_one_release_costs_what_it_claims() -> None:
    assert accounting.compose([gaussian_claim(2.0)], DELTA) == pytest.approx(2.0, rel=1e-6)
    assert accounting.compose([pure_claim(0.7)], 0.0) == 0.7
    digest = summary.make(np.zeros((3, 4)), np.zeros(3, dtype=int), 2, epsilon=3.0, delta=DELTA, source=noise.system())
    assert accounting.compose([digest.claim], DELTA) == pytest.approx(digest.claim.epsilon_total, abs=1e-6)


def test_gaussians_compose_as_one_and_agree_with_loss_distributions() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    claims = [gaussian_claim(1.0), gaussian_claim(2.0), gaussian_claim(0.5)]
    total = None
    for one in claims:
        part = pld.from_gaussian_mechanism(1.0 / one.ratio, value_discretization_interval=1e-4)
        total = part if total is None else total.compose(part)
    assert total is not None
    found = accounting.compose(claims, DELTA)
    assert found == pytest.approx(total.get_epsilon_for_delta(DELTA), abs=2e-3)
    assert found < 3.5


def test_discrete_gaussian_in_one_dimension_agrees_with_dp_accounting() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    exact = pld.from_discrete_gaussian_mechanism(30.0, sensitivity=10, value_discretization_interval=1e-4)
    one = dataclasses.replace(gaussian_claim(), ratio=1 / 3)
    assert accounting.compose([one], DELTA) == pytest.approx(exact.get_epsilon_for_delta(DELTA), abs=5e-3)


def test_different_kinds_compose_below_their_sum() -> None:
    mixed = accounting.compose([gaussian_claim(1.0), pure_claim(0.5)], DELTA)
    assert max(1.0, 0.5) < mixed <= 1.5
    many = accounting.compose([pure_claim(0.1)] * 100, DELTA)
    assert many < 10.0 * 0.7  # at delta > 0 losses average out
    assert accounting.compose([pure_claim(0.1)] * 100, 0.0) == pytest.approx(10.0)


def test_grid_costs_add_up() -> None:
    one = dataclasses.replace(gaussian_claim(), epsilon_grid=0.01, delta_factor=1.001, delta_grid=1e-20)
    plain = accounting.compose([gaussian_claim()] * 2, DELTA)
    assert plain + 0.02 < accounting.compose([one] * 2, DELTA) < plain + 0.0205


def test_what_promises_nothing_costs_everything() -> None:
    assert accounting.compose([claim.paper(256, 4, 20000, 0.005)], DELTA) == math.inf
    assert accounting.compose([dataclasses.replace(pure_claim(), entropy=noise.SEEDED)], DELTA) == math.inf
    assert accounting.compose([gaussian_claim()], 0.0) == math.inf
    with pytest.raises(HoldfastError, match="delta"):
        accounting.compose([], 1.0)


def test_spending_is_on_disk_before_it_returns(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    assert ledger.read_ledger(path) == Ledger()
    first = ledger.spend(POLICY, path, gaussian_claim(), "digest 1")
    assert ledger.read_ledger(path) == first
    second = ledger.spend(POLICY, path, pure_claim(), "digest 2")
    assert [entry.what for entry in ledger.read_ledger(path).entries] == ["digest 1", "digest 2"]
    assert second.epsilon(DELTA) > first.epsilon(DELTA)


def test_an_exhausted_budget_refuses_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    for i in range(4):  # four Gaussians of epsilon 1 cost about 2.2
        ledger.spend(POLICY, path, gaussian_claim(), f"digest {i}")
    before = path.read_bytes()
    with pytest.raises(HoldfastError, match=r"would bring the total to epsilon .* above max_epsilon = 3 .*nothing was"):
        ledger.spend(POLICY, path, gaussian_claim(2.5), "one too many")
    assert path.read_bytes() == before
    ledger.spend(POLICY, path, gaussian_claim(0.5), "a smaller one still fits")


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (claim.paper(256, 4, 20000, 0.005), "mode 'paper' is not allowed"),
        (dataclasses.replace(pure_claim(), entropy=noise.SEEDED), "noise from a seed"),
        (dataclasses.replace(pure_claim(), spd=3), "fewer than min_spd = 4"),
        (pure_claim(3.1), "above max_epsilon"),
    ],
)
def test_policy_refuses(bad: Claim, match: str) -> None:
    with pytest.raises(HoldfastError, match=match):
        ledger.check(POLICY, Ledger(), bad)


def test_a_user_may_allow_everything() -> None:
    policy = Policy(math.inf, 0.0, ("paper",))
    assert ledger.check(policy, Ledger(), claim.paper(256, 4, 20000, 0.005)) == math.inf


@pytest.mark.parametrize("cut", [0, 1, 40, -2])
def test_a_torn_ledger_refuses(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ledger.json"
    ledger.spend(POLICY, path, gaussian_claim(), "digest")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(HoldfastError, match="damaged; nothing is released"):
        ledger.spend(POLICY, path, gaussian_claim(), "another")


def test_an_edited_ledger_refuses(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    ledger.spend(POLICY, path, gaussian_claim(), "digest")
    content = json.loads(path.read_text())
    content["entries"][0]["claim"]["ratio"] = 0.0
    path.write_text(json.dumps(content))
    with pytest.raises(HoldfastError, match="damaged"):
        ledger.read_ledger(path)
    for text in ("[]", "3", '{"schema": 1}', "\udcff"):
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(HoldfastError, match="damaged"):
            ledger.read_ledger(path)


def test_a_ledger_that_is_gone_with_its_count_refuses(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    ledger.spend(POLICY, path, gaussian_claim(), "digest")
    copies = {file: file.read_bytes() for file in (path, tmp_path / "ledger.json.count")}
    for file in copies:
        file.unlink()
    for _ in range(2):  # asking does not wear the memory out
        with pytest.raises(HoldfastError, match="missing although its count is gone with it and a release was entered"):
            ledger.spend(POLICY, path, gaussian_claim(), "another")
    for file, content in copies.items():
        file.write_bytes(content)
    assert len(ledger.spend(POLICY, path, gaussian_claim(), "another").entries) == 2


def test_a_release_that_was_refused_leaves_no_ledger_to_miss(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    with pytest.raises(HoldfastError, match="above max_epsilon"):
        ledger.spend(POLICY, path, gaussian_claim(3.5), "too much")
    assert (tmp_path / "ledger.json.lock").exists()
    assert len(ledger.spend(POLICY, path, gaussian_claim(), "digest").entries) == 1


def test_a_missing_or_older_ledger_refuses(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    ledger.spend(POLICY, path, gaussian_claim(), "digest 1")
    old = path.read_bytes()
    ledger.spend(POLICY, path, gaussian_claim(), "digest 2")
    path.write_bytes(old)
    with pytest.raises(HoldfastError, match=r"has 1 entries but .* counts 2"):
        ledger.spend(POLICY, path, gaussian_claim(), "again")
    path.unlink()
    with pytest.raises(HoldfastError, match="missing although 2 releases"):
        ledger.spend(POLICY, path, gaussian_claim(), "again")
    assert not path.exists()


def test_a_ledger_without_its_count_refuses(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    ledger.spend(POLICY, path, gaussian_claim(), "digest")
    count = tmp_path / "ledger.json.count"
    count.write_text("many")
    with pytest.raises(HoldfastError, match="damaged"):
        ledger.read_ledger(path)
    count.unlink()
    with pytest.raises(HoldfastError, match="counts None"):
        ledger.read_ledger(path)


def test_a_crash_at_any_write_never_understates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop at the n-th file write of the first release: afterwards the ledger reads, and has 0 or 1 entries."""
    for stop in range(3):
        path = tmp_path / str(stop) / "ledger.json"
        path.parent.mkdir()
        done = 0

        def write(file: Path, data: bytes, stop: int = stop) -> None:
            nonlocal done
            if done == stop:
                raise OSError("power cut")
            done += 1
            file.write_bytes(data)

        monkeypatch.setattr(ledger, "write_file", write)
        with pytest.raises(OSError, match="power cut"):
            ledger.spend(POLICY, path, gaussian_claim(), "digest")
        assert len(ledger.read_ledger(path).entries) == (1 if stop == 2 else 0)


def spend_some(path: Path) -> None:
    policy = Policy(1000.0, DELTA, ("moments",))
    for i in range(5):
        ledger.spend(policy, path, gaussian_claim(0.1), str(i))


def test_two_processes_lose_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=spend_some, args=(path,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert len(ledger.read_ledger(path).entries) == 10


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="cannot be locked"):
        ledger.spend(POLICY, tmp_path / "nowhere" / "ledger.json", gaussian_claim(), "digest")


def test_policy_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('max_epsilon = 3\ndelta = 1e-5\nmin_spd = 4\nmodes = ["moments", "dp-full"]\n')
    assert ledger.read_policy(path) == POLICY


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('max_epsilom = 3\ndelta = 1e-5\nmodes = ["moments"]', "did you mean 'max_epsilon'"),
        ('delta = 1e-5\nmodes = ["moments"]', "max_epsilon is missing"),
        ('max_epsilon = "3"\ndelta = 1e-5\nmodes = []', "wrong type"),
        ("max_epsilon = true\ndelta = 1e-5\nmodes = []", "wrong type"),
        ('max_epsilon = 3\ndelta = 1e-5\nmodes = ["moment"]', "did you mean 'moments'"),
        ("max_epsilon = 3\ndelta = 1e-5\nmodes = [3]", "list of names"),
        ("max_epsilon = -1\ndelta = 1e-5\nmodes = []", "must be positive"),
        ("max_epsilon = nan\ndelta = 1e-5\nmodes = []", "must be positive"),
        ("max_epsilon = 3\ndelta = 1.5\nmodes = []", "between 0 and 1"),
        ("max_epsilon = 3\ndelta = 0\nmin_spd = 0\nmodes = []", "at least 1"),
        ("max_epsilon = ", "cannot be read"),
    ],
)
def test_bad_policies_are_refused(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(HoldfastError, match=match):
        ledger.read_policy(path)


def test_a_missing_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="nothing is released"):
        ledger.read_policy(tmp_path / "policy.toml")
