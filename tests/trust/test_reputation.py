"""What a jury knows of each client, by hand: reputations, ramps, doubts, pardons and charges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.core.types import Tensors
from holdfast.trust.jury import Jury
from holdfast.trust.reputation import charge, compare_with_others, first_memory, remember, standing


def test_a_reputation_is_long_and_rounds_in_which_nobody_helps_hardly_count() -> None:
    trust = Jury(slow=0.5)
    told = {w: {0: 0.6, 1: 0.4, 2: 0.6} for w in range(3)}  # help +0.2, -0.2, +0.2: the scale is 0.2, the median 1
    memory = trust.remember(told, [0, 1, 2], [], trust.begin(3))
    assert memory["reputation"].tolist() == pytest.approx([1, -1, 1])
    assert memory["grounds"].tolist() == pytest.approx([1, 1, 1])
    assert float(memory["scale"]) == pytest.approx(0.2)
    late = {w: {0: 0.45, 1: 0.55, 2: 0.6} for w in range(3)}  # evidence -0.5, 0.5, 1: the round counts 0.5^2
    after = trust.remember(late, [0, 1, 2], [], memory)
    assert after["grounds"].tolist() == pytest.approx([1.125] * 3)  # an eighth of the first is forgotten, 0.25 come
    assert after["reputation"].tolist() == pytest.approx(
        [2 / 3, -2 / 3, 1]
    )  # (0.875 - 0.125) / 1.125; the third as it was
    none_helps = {w: {0: 0.1, 1: 0.2, 2: 0.3} for w in range(3)}
    later = trust.remember(none_helps, [0, 1, 2], [], after)["reputation"]
    assert later.tolist() == pytest.approx([2 / 3, -2 / 3, 1])  # nothing is learnt, so nothing is forgotten
    assert memory["grounds"].tolist() == [1, 1, 1]  # what was is not changed
    assert trust.remember({}, [0, 1, 2], [], memory)["reputation"].tolist() == memory["reputation"].tolist()


def test_a_hundred_rounds_that_tell_hardly_anything_do_not_outlast_one_that_told() -> None:
    told = {w: {0: 0.6, 1: 0.65, 2: 0.6} for w in range(3)}  # evidence 1, 1.5, 1
    dull = {w: {0: 0.48, 1: 0.505, 2: 0.505} for w in range(3)}  # evidence -0.2, 0.05, 0.05: counts 0.05^2
    memory = Jury().remember(told, range(3), [], Jury().begin(3))
    for _ in range(100):
        memory = Jury().remember(dull, range(3), [], memory)
    kept = (1 - 0.05 * 0.05**2) ** 100  # of the first round's say
    came = (1 - kept) / 0.05  # what the hundred count, which forget each other too
    expected = [(kept * first + came * later) / (kept + came) for first, later in ((1, -0.2), (1.5, 0.05), (1, 0.05))]
    assert memory["reputation"].tolist() == pytest.approx(expected)
    assert float(memory["reputation"][0]) > 0.75


def test_a_first_round_in_which_hardly_anybody_helps_silences_nobody() -> None:
    """Reports of four honest members, one of which holds other classes: the median help is a tenth of its size."""
    help_found = np.array([[0, 3, 11, 5], [-10, 0, 0, 6], [-5, 7, 0, 0], [-8, 10, -3, 0]]) / 100
    told = {w: {c: (1 + help_found[w, c]) / 2 for c in range(4) if c != w} for w in range(4)}
    memory = opposing(Jury().begin(4), 0)
    after = Jury().remember(told, range(4), [], memory)
    assert float(after["reputation"][0]) == pytest.approx(
        -0.035, abs=0.001
    )  # not -1.45, as it is in units of the median
    assert standing(after, range(4)).tolist() == pytest.approx([0.93, 1, 1, 1], abs=0.01)  # 1 - 0.035 / (0.1 x 5)


@pytest.mark.parametrize(("members", "low"), [(5, -0.4), (10, -0.2), (20, -0.1), (80, -0.1)])
def test_who_harms_on_the_long_average_loses_its_say_and_of_few_reports_later(members: int, low: float) -> None:
    memory = first_memory(members)
    memory["opposed"].fill_(-0.1)  # among fewer than seven that has to be so, too
    memory["reputation"][:4] = torch.tensor([0.01, low / 2, low, 2 * low])
    assert standing(memory, range(5)).tolist() == pytest.approx([1, 0.5, 0, 0, 1])


def opposing(memory: Tensors, client: int) -> Tensors:
    """The memory of a jury in which the client's updates went against the others'."""
    memory["opposed"][client] = -0.1
    return memory


def test_nobody_is_named_or_excluded_by_what_witnesses_say_alone() -> None:
    """Client 1 is slandered; its updates go with the others': cos((3, 4), (6, 8)) = 1, averaged by 0.05 from zero.

    Client 0 goes against the sum of the others, (3, 4) + (-3, -4) / 2 = (1.5, 2): cosine -1.
    """
    trust = Jury(patience=2, exclude=3)
    rows, weights = torch.tensor([[-3.0, -4.0], [3.0, 4.0], [3.0, 4.0]]).double(), np.array([0.0, 0.5, 0.5])
    products, swapped = rows @ rows.T, rows[[1, 0, 2]] @ rows[[1, 0, 2]].T
    memory = compare_with_others(trust.begin(3), products, weights, range(3), [0, 1, 2], slow=0.05)
    assert memory["opposed"].tolist() == pytest.approx([-0.05, 0.05, 0.05])
    slander = {w: {0: 0.6, 1: 0.1, 2: 0.6} for w in range(3)}
    for _ in range(5):
        memory = trust.remember(slander, range(3), [], memory)
    assert trust.suspects(memory, range(3)) == {}
    assert trust.doubted(memory, range(3)) == {}  # of three members, nor does it take a say; of seven it does
    many = {
        name: torch.cat([values, values.new_zeros(4)]) if values.dim() else values for name, values in memory.items()
    }
    assert list(trust.doubted(many, range(3))) == [1]
    assert not trust.excludes(memory, 1)
    for _ in range(40):
        memory = compare_with_others(memory, swapped, weights[[1, 0, 2]], range(3), [0, 1, 2], slow=0.05)
    assert "go against what the others' come to" in trust.suspects(memory, range(3))[1]
    # A stand-in's update says nothing.
    away = compare_with_others(memory, products, weights, range(3), [0, 2], slow=0.05)
    assert away["opposed"][1] == memory["opposed"][1]


def test_suspicion_needs_several_rounds_and_a_client_may_come_back() -> None:
    trust = Jury(patience=2, exclude=3)
    bad = {w: {0: 0.6, 1: 0.1, 2: 0.6, 3: 0.6} for w in range(4)}
    good = {w: {0: 0.6, 1: 0.9, 2: 0.6, 3: 0.6} for w in range(4)}
    memory, told = opposing(trust.begin(4), 1), []
    for _ in range(4):
        memory = trust.remember(bad, range(4), [], memory)
        told.append(trust.suspects(memory, range(4)))
    assert [list(found) for found in told] == [[], [1], [1], [1]]
    assert "harm" in told[1][1]
    assert "excluded" in told[2][1]
    assert trust.weights_of(np.ones(4), memory, range(4)).tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    for _ in range(12):
        memory = trust.remember(good, range(4), [], memory)
    assert trust.suspects(memory, range(4)) == {}
    assert trust.weights_of(np.ones(4), memory, range(4)).tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize(("reputation", "named"), [(-0.2, []), (-0.3, [1])])
def test_a_member_of_many_is_named_only_where_it_harms_clearly_though_its_say_is_lost_before(
    reputation: float, named: list[int]
) -> None:
    memory = opposing(first_memory(20), 1)
    memory["reputation"][1], memory["doubts"][1] = reputation, 10
    assert standing(memory, [1]).tolist() == [0]
    assert list(Jury().doubted(memory, range(20))) == [1]
    assert list(Jury().suspects(memory, range(20))) == named


def test_a_round_in_which_nobody_helps_raises_no_doubts() -> None:
    trust = Jury(patience=1)
    memory = opposing(trust.begin(6), 1)
    memory["scale"].fill_(0.2)
    memory["reputation"][1] = -1.0
    late = {w: {0: 0.51, 1: 0.1, 2: 0.5, 3: 0.5} for w in range(6)}  # all agree on client 1, but the median help is 0
    for _ in range(5):
        memory = trust.remember(late, range(4), [], memory)
    assert memory["doubts"].tolist() == [0] * 6
    assert trust.suspects(memory, range(4)) == {}
    telling = {w: {0: 0.6, 1: 0.1, 2: 0.6, 3: 0.6} for w in range(6)}
    memory = trust.remember(telling, range(4), [], memory)
    assert list(trust.suspects(memory, range(4))) == [1]
    assert trust.remember(late, range(4), [], memory)["doubts"].tolist() == [
        0,
        1,
        0,
        0,
        0,
        0,
    ]  # nor does it take any away


def test_who_reforms_late_is_pardoned_and_who_goes_on_or_plants_is_not() -> None:
    """Where nobody helps no reputation mends; eight rounds without harm, less those with, and all is forgotten."""
    trust = Jury(patience=4)
    telling = {w: {0: 0.6, 1: 0.1, 2: 0.1, 3: 0.6, 4: 0.6, 5: 0.6} for w in range(6)}
    memory = trust.begin(7)
    for _ in range(5):
        memory = trust.remember(telling, range(6), [], memory)
    memory["planted"][3] = -5.0
    assert standing(memory, range(6)).tolist() == [1, 0, 0, 0, 1, 1]
    late = {w: {0: 0.5, 1: 0.5, 2: 0.4, 3: 0.5, 4: 0.51, 5: 0.5} for w in range(6)}  # client 1 has reformed
    for _ in range(7):
        memory = trust.remember(late, range(6), [], memory)
    assert memory["reformed"].tolist() == [0, 7, 0, 0, 0, 0, 0]
    assert standing(memory, range(6)).tolist() == [1, 0, 0, 0, 1, 1]
    odd = {w: {0: 0.45, 1: 0.55, 2: 0.55, 3: 0.45, 4: 0.45, 5: 0.45} for w in range(6)}  # the median member harms
    assert trust.remember(odd, range(6), [], memory)["reformed"].tolist() == memory["reformed"].tolist()
    worse = {w: {**late[w], 1: 0.4} for w in range(6)}
    memory = trust.remember(worse, range(6), [], memory)
    for _ in range(2):
        memory = trust.remember(late, range(6), [], memory)
    assert standing(memory, range(6)).tolist() == [1, 1, 0, 0, 1, 1]
    assert [int(memory[name][1]) for name in ("reputation", "doubts", "reformed")] == [0, 0, 0]
    again = trust.remember(telling, range(6), [], memory)
    assert float(again["reputation"][1]) < -0.4  # nothing is left to outweigh it


def test_who_is_excluded_is_named_even_before_patience_is_at_its_end() -> None:
    trust = Jury(patience=9, exclude=2)
    memory = opposing(trust.begin(4), 1)
    for _ in range(2):
        memory = trust.remember({w: {0: 0.6, 1: 0.1, 2: 0.6, 3: 0.6} for w in range(4)}, range(4), [], memory)
    assert list(trust.suspects(memory, range(4))) == [1]
    assert "2 rounds of doubt, so it is excluded" in trust.suspects(memory, range(4))[1]


def test_a_second_charge_counts_twice_as_long_and_good_conduct_takes_one_back() -> None:
    def heard(memory: Tensors, rounds: int) -> tuple[Tensors, list[bool]]:
        found = []
        for _ in range(rounds):
            memory = remember(memory, {}, range(3), slow=0.05, most=8)
            found.append(bool(standing(memory, [1])[0]))
        return memory, found

    memory, once = heard(charge(first_memory(3), [1]), 3)
    assert once == [False, False, True]
    again, twice = heard(charge(memory, [1]), 5)
    assert twice == [False, False, False, False, True]
    assert again["charged"].tolist() == [0, 2, 0]
    assert heard(again, 4)[0]["charged"].tolist() == [0, 1, 0]
    assert heard(memory, 2)[0]["charged"].tolist() == [0, 0, 0]
    assert standing(again, [0, 2]).tolist() == [1, 1]
