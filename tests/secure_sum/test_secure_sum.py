"""Secure sums: the plain sum to the bit; members that are killed, lie, replay or withhold; a moderator that lies."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_helpers import LAYOUT, Bench, drop, terms_of

from holdfast.core.failures import Refusal
from holdfast.secure_sum.keys import simulated_key
from holdfast.secure_sum.member import Member
from holdfast.secure_sum.moderator import Failed, Question
from holdfast.secure_sum.packing import pack, signed, unpack
from holdfast.secure_sum.shamir import PRIME, SECRET, join, recover, split, value_at

VECTORS = {m: [m, -m, 10 * m, 1 << 20, -(1 << 25), m - 7, 3] for m in range(5)}


def plain(members):
    return np.sum([VECTORS[m] for m in members], axis=0)


@settings(max_examples=10)
@given(st.integers(3, 6), st.data())
def test_the_sum_is_the_plain_sum_to_the_bit(members, data):
    small, large = st.integers(-(2**16), 2**16), st.integers(-(2**29), 2**29)
    one = st.tuples(*[small] * 3, *[large] * 4)
    vectors = {m: data.draw(one) for m in range(members)}
    total = Bench(vectors).take(terms_of(vectors))
    assert total.values.tolist() == np.sum([*vectors.values()], axis=0).tolist()
    assert (total.members, total.records, dict(total.faults)) == (tuple(range(members)), members, {})


@pytest.mark.parametrize("step", ["keys", "shares", "masked", "sign", "open"])
def test_a_member_killed_in_a_step(step):
    """Before its vector left it is not in the sum; once it left, it is, whether its member lives or not."""
    bench = Bench(VECTORS, before=drop(step, 2))
    total = bench.take(terms_of(VECTORS))
    left = [0, 1, 2, 3, 4] if step in ("sign", "open") else [0, 1, 3, 4]
    assert total.members == tuple(left)
    assert total.values.tolist() == plain(left).tolist()
    # Those on the shortest list that members sign, less t: 4 of 5 that sent keys, and 3 of 4.
    assert set(bench.honest) == {2 if step == "keys" else 3}


def test_two_killed_at_once_are_more_than_its_noise_was_made_for():
    with pytest.raises(Failed, match="a list of 3 members is too short; 4 are needed") as failed:
        Bench(VECTORS, before=drop("masked", 1, 2)).take(terms_of(VECTORS))
    assert set(failed.value.without) == {1, 2}
    seven = {m: VECTORS[m % 5] for m in range(7)}
    total = Bench(seven, before=drop("masked", 1, 2)).take(terms_of(seven, t=2))
    assert total.values.tolist() == plain([0, 3, 4, 0, 1]).tolist()


def test_noise_is_enough_although_the_moderator_says_that_honest_members_dropped_out():
    """In league with t members, which add none, it leaves as many honest ones out as the others stand.

    Each share has the variance 1 / honest of what the total needs: those of the honest members on the list make it up.
    """
    for members, t, dropouts in [(4, 1, 0), (4, 1, 1), (7, 2, 2), (20, 1, 1)]:
        some = {m: VECTORS[m % 5] for m in range(members)}
        bench = Bench(some, before=drop("masked", *range(members - dropouts, members)))
        total = bench.take(terms_of(some, t, dropouts=dropouts))
        assert min(bench.honest) == max(bench.honest) == total.honest
        assert len(set(total.members) - set(range(t))) >= total.honest
    with pytest.raises(Failed, match="a list of 3 members is too short; 4 are needed"):
        Bench({m: VECTORS[m] for m in range(4)}, before=drop("masked", 3)).take(terms_of(range(4), dropouts=0))


def test_members_that_were_told_different_things_have_no_sum(monkeypatch):
    """Model inconsistency (Pasquini et al. 2022): the others' updates vanish, so the total would be one's."""
    bench = Bench(VECTORS)
    usual = bench.answer

    def answer(step, member, question):
        bench.terms = dataclasses.replace(terms_of(VECTORS), told="model" if member == 2 else "dead model")
        return usual(step, member, question)

    monkeypatch.setattr(bench, "answer", answer)
    total = bench.take(dataclasses.replace(terms_of(VECTORS), told="dead model"))
    assert total.members == (0, 1, 3, 4)  # nobody takes the victim's keys
    assert "member 2" in total.faults[2]


@pytest.mark.parametrize(("members", "t"), [([0, 1], 0), ([0], 0), (range(5), 4), (range(3), -1)])
def test_too_few_members_are_refused(members, t):
    with pytest.raises(Refusal, match="a secure sum"):
        terms_of(members, t)


def test_a_masked_vector_says_nothing_of_its_own():
    """The same vector masked twice shares no more bytes than chance has it."""
    seen = []

    def watch(step, answers):
        seen.extend([answers[0].letter] if step == "masked" else [])
        return answers

    for _ in range(2):
        Bench(VECTORS, after=watch).take(terms_of(VECTORS))
    first, second = (np.unpackbits(np.frombuffer(one, np.uint8)) for one in seen)
    assert 0.25 < (first != second).mean() < 0.75


def swap_key(step, questions):
    """The moderator puts its own key in place of member 1's, signed by itself, for everybody but member 1."""
    if step != "shares":
        return questions
    forged = Member(
        dataclasses.replace(terms_of(VECTORS), known={**terms_of(VECTORS).known}), 1, simulated_key(0, 1), {}
    )
    mine = forged.keys()[:64] + simulated_key(7, 7).sign(b"mine")
    return {m: dataclasses.replace(q, letters={**q.letters, 1: mine}) for m, q in questions.items()}


def test_a_moderator_that_swaps_a_key_is_found_out_by_everybody():
    bench = Bench(VECTORS, before=swap_key)
    with pytest.raises(Failed):
        bench.take(terms_of(VECTORS))
    assert {member for step, member in bench.refusals} == set(VECTORS)
    assert bench.refusals["shares", 0].code == "sum-key"
    assert "member 1's is not signed by it" in str(bench.refusals["shares", 0])


def test_a_key_of_another_sum_is_not_taken():
    """Replay: member 3 sends the keys of an earlier attempt, which it signed; it is named and left out."""
    old = Member(terms_of(VECTORS, attempt=8), 3, simulated_key(0, 3), {}).keys()
    bench = Bench(VECTORS, after=lambda s, a: {**a, 3: dataclasses.replace(a[3], letter=old)} if s == "keys" else a)
    total = bench.take(terms_of(VECTORS))
    assert total.values.tolist() == plain([0, 1, 2, 4]).tolist()
    assert "member 3" in total.faults[3]


def garbage(step, member, place):
    def hook(at, answers):
        if at != step or member not in answers:
            return answers
        one = answers[member]
        if place == "letter":
            return {**answers, member: dataclasses.replace(one, letter=b"x")}
        return {**answers, member: dataclasses.replace(one, letters={o: bytes(len(c)) for o, c in one.letters.items()})}

    return hook


@pytest.mark.parametrize(
    ("step", "place", "named"),
    [
        ("keys", "letter", 2),
        ("shares", "letter", 2),
        ("masked", "letter", 2),
        ("open", "letters", 2),
        ("sign", "letter", 0),
    ],
)
def test_garbage_in_a_step_leaves_its_sender_out_and_names_it(step, place, named):
    total = Bench(VECTORS, after=garbage(step, 2, place)).take(terms_of(VECTORS))
    left = [0, 1, 2, 3, 4] if step in ("sign", "open") else [0, 1, 3, 4]
    assert total.values.tolist() == plain(left).tolist()
    assert set(total.faults) == ({named} if named else set())


def test_shares_that_others_cannot_open_are_blamed_on_their_sender():
    with pytest.raises(Failed, match="member 2 sent shares that others cannot open") as failed:
        Bench(VECTORS, after=garbage("shares", 2, "letters")).take(terms_of(VECTORS))
    assert set(failed.value.without) == {2}


def test_a_second_sum_with_other_members_is_refused_and_named():
    """The difference of the two totals would be member 4's numbers."""
    bench = Bench(VECTORS)
    bench.take(terms_of(VECTORS))
    with pytest.raises(Failed):
        bench.take(terms_of([0, 1, 2, 3], attempt=1))
    assert {bench.refusals["keys", m].code for m in range(4)} == {"overlap"}
    assert bench.take(terms_of(VECTORS, attempt=2)).members == tuple(VECTORS)  # the same total, with other noise
    bench.before = drop("masked", 4)
    with pytest.raises(Failed):
        bench.take(terms_of(VECTORS, attempt=3))
    assert {bench.refusals["sign", m].code for m in range(4)} == {"overlap"}
    bench.before = None
    assert bench.take(terms_of(VECTORS, purpose="other counts")).values.tolist() == plain(VECTORS).tolist()


def test_sums_that_run_side_by_side_are_opened_once():
    """Both were begun before either is opened: the second one is refused when its vector is asked for."""
    bench = Bench(VECTORS)
    one = Member(terms_of([0, 1, 2, 3]), 0, simulated_key(0, 0), bench.opened[0])
    bench.take(terms_of(VECTORS))
    one._roll = dict.fromkeys(range(4), b"")
    with pytest.raises(Refusal, match="opened before with other members"):
        one.masked({}, LAYOUT, lambda honest: np.zeros(7, np.int64))


def test_a_member_signs_one_list_and_opens_no_other():
    """Were two lists signed, both secrets of a member could be opened."""
    bench = Bench(VECTORS)
    bench.take(terms_of(VECTORS))
    one = bench.members[0]
    with pytest.raises(Refusal, match="out of turn"):
        one.sign([0, 1, 2, 3])
    with pytest.raises(Refusal, match="0 members signed"):
        one.open({m: bytes(64) for m in VECTORS})


def test_a_list_without_enough_signatures_opens_nothing():
    bench = Bench(VECTORS, before=lambda s, q: {m: Question(dict(list(one.letters.items())[:2]), one.present)
                                                for m, one in q.items()} if s == "open" else q)  # fmt: skip
    with pytest.raises(Refusal, match="do not give back a secret"):
        bench.take(terms_of(VECTORS))
    assert "2 members signed this list, and 4 are needed" in str(bench.refusals["open", 0])
    assert all(not opened for opened in bench.opened.values())


def test_shares_below_the_threshold_fit_every_secret():
    """Shamir: with two of three shares, some third share leads to any secret."""
    shares = split(b"a" * SECRET, [1, 2, 3, 4, 5], 3)
    for three in combinations(shares, 3):
        assert join({place: shares[place] for place in three}) == b"a" * SECRET
    wanted = int.from_bytes(b"b" * SECRET, "big")
    # The polynomial through (0, wanted) and two shares exists: its value at 3 is a proper share.
    points = {0: wanted.to_bytes(17, "big"), 1: shares[1], 2: shares[2]}
    third = value_at(points, 3).to_bytes(17, "big")
    assert join({1: shares[1], 2: shares[2], 3: third}) == b"b" * SECRET
    assert pow(3, PRIME - 1, PRIME) == 1


def test_a_wrong_share_is_named():
    shares = split(b"c" * SECRET, [1, 2, 3, 4, 5], 3)
    secret, liars = recover({**shares, 2: bytes(17), 4: b"short"}, 3, lambda s: s == b"c" * SECRET)
    assert (secret, sorted(liars)) == (b"c" * SECRET, [2, 4])


@settings(max_examples=20)
@given(
    st.lists(st.integers(-(2**19), 2**19 - 1), min_size=3, max_size=3),
    st.lists(st.integers(-(2**32), 2**32 - 1), min_size=4, max_size=4),
)
def test_packing(first, second):
    words = np.array([*first, *second], dtype=np.int64).view(np.uint64)
    assert signed(unpack(pack(words, LAYOUT), LAYOUT), LAYOUT).tolist() == [*first, *second]
