"""What the moderator does not take: replies, names, settings, and folders of other runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_helpers import experiment
from flower_helpers import Spoilt, hostile, nodes, play
from flwr.app import Message as Packet
from flwr.clientapp import ClientApp

from holdfast.core.errors import HoldfastError
from holdfast.core.types import Absent, Message
from holdfast.flower.deploy.site import client_app
from holdfast.flower.engine.answers import read_answer
from holdfast.flower.engine.codec import Letter, encode
from holdfast.flower.engine.inprocess import InProcessGrid
from holdfast.flower.engine.moderator import read_settings
from holdfast.flower.engine.sites import Sites


def test_a_registered_name_counts_and_a_stranger_has_no_place() -> None:
    sites = Sites(["north", "south"])
    sites.registered(7, "south")
    sites.registered(8, "west")
    assert (sites.node_of(1), sites.missing) == (7, ["north"])
    sites.claim(9, "south", "a token")
    assert "another node's" in sites.refused[9]
    assert sites.node_of(1) == 7
    assert "no site of this run" in sites.refused[8]


def test_what_hostile_sites_send_is_refused_and_named(tmp_path: Path) -> None:
    wanted = experiment(clients=5, partition="iid", rounds=1)
    grid = InProcessGrid(Spoilt(client_app(wanted), hostile), nodes(tmp_path, 5))
    record = play(tmp_path, wanted, grid, max_bytes=100_000).records[0]
    assert "is not finite" in record.refused[0]
    assert "expected float32" in record.refused[1]
    assert "above the bound of 100000" in record.absent[2]
    assert "answered to another question" in record.absent[3]
    assert "answered to another question" in record.absent[4]
    assert record.weights == {}


@pytest.mark.parametrize(
    ("job", "changes", "sentence"),
    [
        ("train", {"error": "few"}, "failed in job 'train' of round 4: it has fewer records"),  # as people count
        ("train", {"error": "[b]Anna"}, "failed in job 'train' of round 4: it says something that this version"),
        ("train", {"round": 0}, "another question (job 'train' of round 1 as client 0)"),
        ("train", {"seconds": math.nan}, "it took nan s"),
        ("train", {"scalars": {"notes": 5}}, "its notes are not"),
        ("train", {"scalars": {"notes": ["x" * 3000]}}, "its notes are not"),
        ("train", {"scalars": {"loss": "low"}}, "its loss is 'low', not a number"),
        ("evaluate", {"scalars": {}}, "it lacks `metrics`"),
        ("evaluate", {"scalars": {"metrics": math.nan}}, "`metrics` is nan, not a table"),
    ],
)
def test_words_that_the_moderator_reads_must_be_what_they_are_read_as(
    job: str, changes: dict[str, Any], sentence: str
) -> None:
    InProcessGrid(ClientApp(), {})  # from here on messages can be made in this process
    letter = replace(Letter(0, 3, job, scalars={"metrics": {"accuracy": [1.0, 2.0]}}), **changes)
    asked = Packet(encode(Letter(0, 3, job)), dst_node_id=1, message_type="train.job")
    answer = read_answer(Packet(encode(letter), reply_to=asked), Message(0, 3, job), 1000)
    assert isinstance(answer, Absent)
    assert sentence in answer.reason


def test_a_run_folder_of_another_experiment_is_not_continued(tmp_path: Path) -> None:
    play(tmp_path, experiment(rounds=1))
    with pytest.raises(HoldfastError, match="holds a run of another experiment"):
        play(tmp_path, experiment(rounds=2))


def test_settings_are_checked() -> None:
    assert read_settings({"gather": 5})["gather"] == 5.0
    for wrong, sentence in (
        ({"dedline-least": 1.0}, "did you mean 'deadline-least'"),
        ({"enough": "two"}, "enough must be int"),
        ({"half": "some"}, "half is 'some'"),
    ):
        with pytest.raises(HoldfastError, match=sentence):
            read_settings(wrong)
