"""The same experiment gives the same bits on the embedded engine and over Flower's messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_helpers import assert_same_run, experiment
from flower_helpers import in_process, play
from release_helpers import experiment as with_digests

from holdfast.algorithms import ALGORITHMS
from holdfast.core.files import read_lines
from holdfast.play import run
from holdfast.runs.experiment import Experiment, from_table
from holdfast.trust import TRUSTS

JOBS = ("train", "evaluate")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


TRAINING = {name for name, kind in ALGORITHMS.items() if not kind.one_message}
WITHOUT_NORMS = sorted(TRAINING - {"fedbn"})  # fedbn: test_shares.py, with a network that has norms


def pictures(**changes: object) -> Experiment:
    return from_table({
        "task": "engine_helpers:pictures", "clients": 3, "partition": "iid", "rounds": 3, "batch_size": 8, "workers": 0,
        **changes,
    })  # fmt: skip


@pytest.mark.parametrize("algorithm", WITHOUT_NORMS)
def test_each_algorithm_gives_the_same_bits_with_clients_that_come_and_go(tmp_path: Path, algorithm: str) -> None:
    wanted = experiment(algorithm=algorithm, rounds=5, scenario="dropout:0.4")
    assert_same_run(play(tmp_path, wanted), run(wanted))


@pytest.mark.parametrize("algorithm", WITHOUT_NORMS)
def test_each_algorithm_with_feddig_gives_the_same_bits_while_clients_leave(tmp_path: Path, algorithm: str) -> None:
    wanted = with_digests(algorithm=algorithm, absence="feddig", scenario="sequential")
    history = play(tmp_path, wanted)
    assert_same_run(history, run(wanted))
    assert any(record.stand_ins for record in history.records)


@pytest.mark.parametrize("head", ["lda", "kernel", "server-step"])
def test_one_message_gives_the_same_bits(tmp_path: Path, head: str) -> None:
    wanted = with_digests(algorithm=f"oneshot:{head}", absence="feddig", rounds=1, model="auto")
    history = play(tmp_path, wanted)
    assert_same_run(history, run(wanted))
    assert set(history.records[0].weights) == set(range(wanted.clients))


def test_feddig_with_guidance_gives_the_same_bits(tmp_path: Path) -> None:
    wanted = pictures(algorithm="scaffold", absence="feddig", model="full", scenario="sequential")
    assert_same_run(play(tmp_path, wanted), run(wanted))


@pytest.mark.parametrize("trust", sorted(TRUSTS))
def test_each_rule_of_trust_gives_the_same_bits_with_a_hostile_client(tmp_path: Path, trust: str) -> None:
    wanted = with_digests(
        clients=7, rounds=2, absence="feddig", trust=trust, attack="signflip", attackers=1, scenario="none"
    )
    history, reference = play(tmp_path, wanted), run(wanted)
    assert_same_run(history, reference)
    assert [record.scores for record in history.records] == [record.scores for record in reference.records]
    assert [record.weights for record in history.records] == [record.weights for record in reference.records]


@pytest.mark.parametrize("clients", [7, 13])
def test_a_search_for_backdoors_gives_the_same_bits(tmp_path: Path, clients: int) -> None:
    """With 13 members also in what each alone taught, of which the second search is."""
    wanted = pictures(clients=clients, rounds=2, model="cnn", trust="jury:patches=1", attack="backdoor", attackers=1)
    history, reference = play(tmp_path, wanted), run(wanted)
    assert_same_run(history, reference)
    assert history.state is not None
    assert reference.state is not None
    planted = history.state.trust["planted"]
    assert torch.equal(planted, reference.state.trust["planted"])
    assert planted.any()
    assert ("taught" in history.state.trust) == (clients == 13)


def test_the_moderator_relays_models_to_the_testers_and_counts_the_bytes(tmp_path: Path) -> None:
    wanted = pictures(trust="fedtest:2", rounds=2, model="cnn")
    history, reference = play(tmp_path, wanted), run(wanted)
    relayed = [line for line in read_lines(tmp_path / "run" / "exchanges.jsonl") if line["job"] not in JOBS]
    assert len(relayed) == 2
    assert history.bytes_down == reference.bytes_down > 0


def test_the_model_with_buffers_gives_the_same_bits(tmp_path: Path) -> None:
    wanted = pictures(model="cnn", rounds=2)
    assert_same_run(play(tmp_path, wanted), run(wanted))


def test_the_embedded_workers_agree_too(tmp_path: Path) -> None:
    wanted = experiment(algorithm="scaffold", rounds=3, workers=2)
    assert_same_run(play(tmp_path, wanted), run(wanted))


def test_a_moderator_that_stopped_goes_on_with_the_sites_memories(tmp_path: Path) -> None:
    wanted = experiment(algorithm="scaffold", rounds=6)
    grid = in_process(tmp_path, wanted)
    pulls = 0
    pull = grid.pull_messages

    def stop_in_the_middle(numbers: list[str]) -> object:
        nonlocal pulls
        pulls += 1
        if pulls == 6:
            raise KeyboardInterrupt
        return pull(numbers)

    grid.pull_messages = stop_in_the_middle  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path, wanted, grid)
    # New processes everywhere: what is remembered is what lies on the disks.
    assert_same_run(play(tmp_path, wanted), run(wanted))


def test_float16_halves_the_bytes_and_keeps_the_accuracy(tmp_path: Path) -> None:
    wanted = pictures(model="cnn", rounds=3, evaluate_every=3)
    sizes, accuracies = {}, {}
    for half in ("none", "updates", "both"):
        history = play(tmp_path / half, wanted, half=half)
        lines = [line for line in read_lines(tmp_path / half / "run" / "exchanges.jsonl") if line["job"] == "train"]
        sizes[half] = sum(line["bytes_down"] + line["bytes_up"] for line in lines)  # type: ignore[operator]
        accuracies[half] = history.accuracy[-1]
    assert sizes["updates"] == pytest.approx(0.75 * sizes["none"], rel=0.02)
    assert sizes["both"] == pytest.approx(0.5 * sizes["none"], rel=0.03)
    assert accuracies["none"] == run(wanted).accuracy[-1]
    assert all(abs(accuracy - accuracies["none"]) <= 0.05 for accuracy in accuracies.values())


def test_bytes_are_close_to_twice_the_model_for_each_site(tmp_path: Path) -> None:
    wanted = pictures(model="cnn", rounds=1)
    history = play(tmp_path, wanted)
    assert history.state is not None
    model = sum(t.numel() * 4 for t in history.state.model.values())
    line = read_lines(tmp_path / "run" / "exchanges.jsonl")[0]
    assert line["bytes_down"] + line["bytes_up"] <= 1.05 * model * 2 * 3  # type: ignore[operator]
