"""Rules that remember or draw: client momentum, DeMoA and buckets, on one number from each client."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from round_bench import make_method

from holdfast.algorithms import ALGORITHMS
from holdfast.core.config import Choice, choose
from holdfast.core.types import State, Update
from holdfast.engines.inline import Inline
from holdfast.learning.settings import Learning
from holdfast.trust import TRUSTS, Hearing, Judgement, Trust

LEARNING = Learning(epochs=1, batch_size=4, lr=0.1, momentum=0.9)


def one_number(values: dict[int, float]) -> list[Update]:
    return [Update(client, {"w": torch.tensor([value])}, 1, 1) for client, value in values.items()]


def play_numbers(spec: str, clients: int, rounds: list[dict[int, float]]) -> list[tuple[float, Judgement]]:
    """What a rule makes of one number from each client that is there, round after round."""
    hearing = Hearing(make_method(ALGORITHMS["fedavg"](), LEARNING, clients), Inline({}))
    made: Trust = choose(TRUSTS, Choice.parse(spec, "trust"), "trust")
    state, found = State(0, {"w": torch.zeros(1)}, {}, {}, {}, {}), []
    for values in rounds:
        judged = made.judge(one_number(values), hearing, state)
        found.append(
            (sum(w * float(u.delta["w"]) for w, u in zip(judged.weights, judged.updates, strict=True)), judged)
        )
        state = replace(state, round=state.round + 1, trust=judged.memory)
    return found


def test_client_momentum_by_hand() -> None:
    """Momentum 1/2, tau so long that nothing is clipped: the mean of m_i, 0.5 m_i + 0.5 delta_i; the first is delta_i.

    Round 1: (2 + 4) / 2 = 3. Round 2, client 1 away: m_0 = 1 + 3 = 4. Round 3: m_0 = 2 + 0 = 2, m_1 = 2 + 4 = 6: 4.
    """
    found = play_numbers("clipping:tau=1e9,momentum=0.5", 2, [{0: 2.0, 1: 4.0}, {0: 6.0}, {0: 0.0, 1: 8.0}])
    assert [value for value, _ in found] == pytest.approx([3.0, 4.0, 4.0])


def test_demoa_by_hand() -> None:
    """alpha = p = 1/2, so 1 - alpha p = 3/4; three clients, the third is never there until round 3.

    Round 1: m = (2, 4, 0), c = 1/4, the median 2 / c = 8. Round 2, clients 0 and 1 away, 2 hostile:
    m = (1.5, 3, -50), c = 7/16, median 1.5 x 16/7. All three count, with the third as one of three, not as all.
    With the mean: round 1 (2 + 4 + 0) / 3 / (1/4) = 8.
    """
    rounds = [{0: 4.0, 1: 8.0}, {2: -100.0}]
    found = play_numbers("demoa:then=median,alpha=0.5,p=0.5", 3, rounds)
    assert [value for value, _ in found] == pytest.approx([8.0, 1.5 * 16 / 7])
    assert found[1][1].say == pytest.approx({0: 1.0, 1: 0.0, 2: 0.0})
    assert play_numbers("demoa:then=mean,alpha=0.5,p=0.5", 3, rounds)[0][0] == pytest.approx(8.0)


def test_demoa_counts_who_is_there_where_no_p_is_given() -> None:
    """alpha = 1, mean. Round 1: p = 2/2, m = (2, 4), c = 1: 3. Round 2, one away: p = 3/4, m = (1/4 x 2 + 6, 1/4 x 4),
    c = 1/4 + 3/4: 3.75. With everybody there and alpha = 1 it is the plain mean."""
    found = play_numbers("demoa:then=mean,alpha=1", 2, [{0: 2.0, 1: 4.0}, {0: 6.0}])
    assert [value for value, _ in found] == pytest.approx([3.0, 3.75])


def test_of_a_member_that_withdraws_no_momentum_stays() -> None:
    _, judged = play_numbers("demoa", 2, [{0: 2.0, 1: 4.0}])[0]
    state = State(1, {"w": torch.zeros(1)}, {}, {}, {}, dict(judged.memory))
    assert {name for name in state.without({1}).trust if name.startswith("momentum")} == {"momentum/0"}


def test_buckets_are_drawn_anew_in_each_round_and_seeded() -> None:
    """One client of twenty says 20, all others 0; buckets of 4: the trimmed mean of 5 buckets drops the loud one."""
    values = {client: 20.0 if client == 3 else 0.0 for client in range(20)}
    found = play_numbers("bucketing:then=trimmed,size=4,f=1", 20, [values, values])
    assert [value for value, _ in found] == [0.0, 0.0]
    groups = [{c for c, say in judged.say.items() if say == 0} for _, judged in found]
    assert all(3 in group for group in groups)
    values = {client: float(client) for client in range(20)}  # different rows: whose mean is left out is drawn
    once, again = (play_numbers("bucketing:then=median,size=2", 20, [values, values]) for _ in range(2))
    assert [value for value, _ in once] == [value for value, _ in again]
    assert once[0][1].say != once[1][1].say


def test_where_sites_are_real_the_draw_is_the_systems() -> None:
    """Who knows the seed knows the draws of an experiment, and nothing of those made with a secret."""
    method = make_method(ALGORITHMS["fedavg"](), LEARNING, 20)
    seeded, secret = (torch.randperm(20, generator=m.draw(4, "testers")) for m in (method, replace(method, secret=77)))
    assert torch.equal(seeded, torch.randperm(20, generator=method.draw(4, "testers")))
    assert not torch.equal(seeded, secret)
