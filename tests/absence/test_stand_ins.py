"""Stand-ins of those who were away begin early: they step down for who is back, and change no bit."""

from __future__ import annotations

from dataclasses import replace

import torch
from feddig_helpers import DIGESTS, FROM_CLIENT_0, Script, both, method_with, only_client_0, start

from holdfast.absence import FedDig
from holdfast.absence.feddig import StandIns
from holdfast.round import play_round


def test_a_stand_in_steps_down_at_once_when_its_client_is_back() -> None:
    """Client 1 was away, so its stand-in has begun; it answers nevertheless, and only its answer counts."""
    method = method_with(FedDig(server_epochs=0))
    state = replace(start(method), digests=DIGESTS, absent=(1,))
    after, record = play_round(state, Script(2, both), method)
    assert record.stand_ins == []
    torch.testing.assert_close(after.model["w"], torch.tensor(FROM_CLIENT_0))
    assert after.absent == ()
    assert int(after.absence["stood_in"][1]) == -1


def test_stand_ins_that_were_begun_early_give_the_same_bits() -> None:
    method = method_with(FedDig())
    state = replace(start(method), digests=DIGESTS)
    late, _ = play_round(state, Script(2, only_client_0), method)
    early, _ = play_round(replace(state, absent=(1,)), Script(2, only_client_0), method)
    assert torch.equal(late.model["w"], early.model["w"])


def test_stand_ins_nobody_waited_for_are_not_lost_work_for_others() -> None:
    method = method_with(FedDig())
    state = replace(start(method), digests=DIGESTS, absent=(0, 1))
    assert StandIns(FedDig(), state, range(2), method).result([], []) == []
    assert [u.client for u in StandIns(FedDig(), state, range(2), method).result([1], [])] == [1]
