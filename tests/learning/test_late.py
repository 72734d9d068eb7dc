"""Late replies: numbers by hand, a plain loop as oracle, resume to the same bits, and what does not go with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from algorithms_bench import Bench, plain
from engine_helpers import assert_same_run, experiment, interrupted

from holdfast.algorithms import FedAvg
from holdfast.core.errors import HoldfastError
from holdfast.engines.checked import Checked
from holdfast.engines.delayed import Delayed
from holdfast.learning.late import FedAsync, FedBuff, LateReplies
from holdfast.play import forget, resume, run
from holdfast.runs.build import make_plan
from holdfast.runs.store import Run

SLOW = {"scenario": "slow:share=0.5,delay=2", "rounds": 7}


def bench_of(late: LateReplies, delays: dict[int, int], targets: list[float], samples: list[int]) -> Bench:
    bench = Bench(FedAvg(), targets, samples, plain(0.5), rounds=20)
    bench.method = replace(bench.method, late=late)
    bench.federation = Delayed(Checked(bench.federation, bench.method), delays, "slow")  # type: ignore[assignment]
    return bench


@pytest.mark.parametrize(
    ("late", "values"),
    [
        # Client 1 answers one round late. Round 1, w = 0: client 0 alone moves by 4.
        (LateReplies(), [4.0, 6.0, 7.0]),
        # Round 2, w = 4: client 0 moves by 2, client 1's -14 of round 1 counts half: w = 4 + 2/4 - 7 * 3/4
        # Round 3, w = -0.75: 8.75/2 and half of (-16 - 4) * 7/8: w = -0.75 + 4.375/4 - 8.75 * 3/4
        (FedBuff(a=1.0), [4.0, -0.75, -6.21875]),
        # Round 2: client 1's model was 0 - 14, so (0 - 14 - 4)/2 = -9: w = 4 + 2/4 - 9 * 3/4
        # Round 3, w = -2.25: 10.25/2 and (4 - 17.5 + 2.25)/2: w = -2.25 + 5.125/4 - 5.625 * 3/4
        (FedAsync(a=1.0), [4.0, -2.25, -5.1875]),
        (FedBuff(a=1.0, max_age=1, hinge=1), [4.0, -6.0, -17.375]),  # the age 1 counts in full: 4 + 2/4 - 14 * 3/4
    ],
)
def test_a_late_update_by_hand(late: LateReplies, values: list[float]) -> None:
    bench = bench_of(late, {1: 1}, [8.0, -16.0], [1, 3])
    assert [bench.play() for _ in values] == values
    assert bench.record.late == ({1: 2} if late.takes else {})
    assert (1 in bench.record.absent) is not late.takes


def test_against_a_plain_loop_of_many_rounds() -> None:
    targets, samples, delays = [3.0, -1.0, 10.0], [2, 1, 3], {0: 3, 2: 2}
    bench = bench_of(FedBuff(max_age=2), delays, targets, samples)  # client 0's are too old to count
    w = 0.0
    sent: dict[int, tuple[int, float]] = {}
    for t in range(12):
        moves = {1: (targets[1] - w) * 0.5}
        for c, delay in delays.items():
            if c not in sent or t - sent[c][0] == delay:
                if c in sent and delay <= 2:
                    moves[c] = sent[c][1] / (1 + delay) ** 0.5
                sent[c] = (t, (targets[c] - w) * (1 - 0.5 ** samples[c]))
        w += sum(samples[c] * move for c, move in moves.items()) / sum(samples[c] for c in moves)
        assert bench.play() == pytest.approx(w, abs=1e-5)


@pytest.mark.parametrize("late", ["fedbuff", "fedasync:a=1"])
def test_a_resumed_run_has_the_same_bits_and_a_member_may_withdraw(late: str, tmp_path: Path) -> None:
    wanted = experiment(late=late, **SLOW)
    whole = run(wanted)
    assert [len(record.late) for record in whole.records] == [0, 0, 2, 0, 2, 0, 2]
    interrupted(wanted, tmp_path / "run", after=4)
    assert_same_run(resume(tmp_path / "run"), whole)
    assert [dict(r.late) for r in Run.open(tmp_path / "run").records()] == [dict(r.late) for r in whole.records]
    slow = max(whole.records[2].late)
    done = forget(tmp_path / "run", f"site-{slow}")
    assert any(name.startswith(f"late/{slow:04d}/") for name in done.deleted)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"algorithm": "scaffold"}, "clients keep something"),
        ({"optimizer": {"name": "adam", "keep": True}}, "clients keep something"),
        ({"trust": "fedtest"}, "test updates against the model"),
        ({"late": "fedbuff:a=-1"}, "a must not be negative"),
        ({"late": "fedsync"}, "is not known"),
    ],
)
def test_what_does_not_go_with_it_is_a_sentence(keys: dict[str, object], why: str) -> None:
    with pytest.raises(HoldfastError, match=why):
        make_plan(experiment(**{"late": "fedbuff", **keys}))
