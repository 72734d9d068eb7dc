"""An experiment from a file, from changes and from itself; what is wrong with it is one sentence that names the key."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.absence import ABSENCES
from holdfast.cli.comparing import Conditions, combinations
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.data.task import Samples, Task
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment, from_changes, from_table, load, set_key
from holdfast.runs.presets import PRESETS, parse_method

words = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
values = st.one_of(st.integers(-9, 9), st.booleans(), st.floats(-9, 9), words, st.lists(st.integers(0, 9), max_size=3))
options = st.dictionaries(words.filter(lambda word: word != "name"), values, max_size=3)
arguments = st.one_of(st.none(), st.floats(0, 1).map(str), words)
paths = st.tuples(words, words, words).map(lambda p: f"{p[0]}.{p[1]}:{p[2]}")
choices = st.one_of(
    st.builds(Choice, name=words, options=options, argument=arguments),
    st.builds(Choice, name=paths, options=options),
)
positive = st.floats(1e-6, 1e6)
experiments = st.builds(
    Experiment,
    task=words,
    data=st.one_of(st.none(), words.filter(lambda word: word != "none")),
    model=choices,
    clients=st.integers(1, 99),
    partition=choices,
    scenario=choices,
    algorithm=choices,
    absence=choices,
    trust=choices,
    lr=positive,
    momentum=st.floats(0, 0.99),
    schedule=choices,
    optimizer=choices,
    server_optimizer=choices,
    selection=choices,
    clip_norm=st.one_of(st.none(), positive),
    max_norm=st.one_of(st.none(), positive),
    seed=st.integers(0, 2**40),
    workers=st.one_of(st.none(), st.integers(0, 9)),
)


@given(experiment=experiments)
@settings(max_examples=30)
def test_round_trip_through_a_table_and_through_json(experiment: Experiment) -> None:
    assert from_table(experiment.as_json()) == experiment
    assert from_table(json.loads(json.dumps(experiment.as_json()))) == experiment
    assert from_table(experiment.as_json()).fingerprint == experiment.fingerprint


def test_the_usual_experiment_is_the_empty_table() -> None:
    assert from_table({}) == Experiment()


def test_the_fingerprint_sees_what_decides_and_nothing_else() -> None:
    usual = Experiment()
    assert replace(usual, workers=3, checkpoint_every=5, patience=60.0).fingerprint == usual.fingerprint
    changes = {"seed": 1, "lr": 0.5, "rounds": 3, "algorithm": Choice("feddyn"), "max_norm": 1.0, "momentum": 0.0}
    prints = {replace(usual, **{key: value}).fingerprint for key, value in changes.items()}
    assert len(prints | {usual.fingerprint}) == len(changes) + 1


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"algoritm": "fedavg"}, "there is no key 'algoritm'; did you mean 'algorithm'?"),
        ({"round": 3}, "there is no key 'round'; did you mean 'rounds'?"),
        ({"rounds": "many"}, "rounds: expected a whole number, got 'many'."),
        ({"rounds": 2.5}, "rounds: expected a whole number, got 2.5."),
        ({"rounds": True}, "rounds: expected a whole number, got True."),
        ({"rounds": None}, "rounds: expected a whole number, got None."),
        ({"lr": "fast"}, "lr: expected a number, got 'fast'."),
        ({"lr": [0.1]}, "lr: expected a number, got [0.1]."),
        ({"lr": False}, "lr: expected a number, got False."),
        ({"lr": "nan"}, "lr: expected a number, got nan."),
        ({"max_norm": math.nan}, "max_norm: expected a number, got nan."),
        ({"task": 3}, "task: expected text, got 3."),
        ({"schedule": 3}, "schedule: expected a name"),
        ({"clip_norm": 0}, "clip_norm must be positive, got 0.0"),
        ({"algorithm": 3}, "algorithm: expected a name"),
        ({"algorithm": ""}, "algorithm: expected a name"),
        ({"algorithm": ":mu"}, "algorithm: expected a name"),
        ({"algorithm": {"mu": 1}}, "algorithm: a table needs a name"),
        ({"algorithm": {"name": 3}}, "algorithm: a table needs a name"),
        ({"rounds": 0}, "rounds must be at least 1, got 0."),
        ({"clients": -4}, "clients must be at least 0, got -4."),
        ({"seed": -1}, "seed must be at least 0, got -1."),
        ({"workers": -1}, "workers must be at least 0, got -1."),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, got -0.1."),
        ({"weight_decay": math.inf}, "weight_decay must be at least 0"),
        ({"lr": 0}, "lr must be positive"),
        ({"lr": "inf"}, "lr must be positive"),
        ({"momentum": 1}, "momentum in [0, 1)"),
        ({"momentum": -0.1}, "momentum in [0, 1)"),
        ({"patience": 0}, "patience must be positive seconds, got 0.0"),
        ({"max_norm": 0}, "max_norm must be positive, got 0.0"),
        ({"max_norm": math.inf}, "max_norm must be positive, got inf; leave it out for no bound."),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_the_key(table: dict[str, object], says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        from_table(table)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", [f.name for f in fields(Experiment) if f.name != "given"])
def test_every_key_with_one_letter_missing_is_told_its_name(key: str) -> None:
    if len(key) > 3:
        with pytest.raises(HoldfastError, match=f"did you mean '{key}'"):
            from_table({key[:-2] + key[-1]: 1})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("lr", math.nan, "lr: expected a number, got nan."),
        ("lr", math.inf, "lr must be positive"),
        ("lr", 0.0, "lr must be positive"),
        ("lr", -1.0, "lr must be positive"),
        ("rounds", "three", "rounds: expected a whole number, got 'three'."),
        ("rounds", 2.5, "rounds: expected a whole number, got 2.5."),
        ("model", dict, 'model: expected a name such as "name:option=value" or your own "module:Name", got a type.'),
        ("data", 3, "data: expected text, got 3."),
    ],
)
def test_python_users_are_refused_too(key: str, value: Any, says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        Experiment(**{key: value})
    assert says in str(error.value)


def test_from_python_paths_and_numbers_of_numpy_will_do() -> None:
    given: dict[str, Any] = {"rounds": np.int64(3), "lr": np.float32(0.5), "data": Path("here"), "names": ["a", "b"]}
    assert Experiment(**given) == Experiment(rounds=3, lr=0.5, data="here", names=("a", "b"))


def test_a_file_with_changes(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(
        'rounds = 3\nalgorithm = {name = "fedprox", mu = 0.5}\npartition = "dirichlet:0.3"\ndata = "pictures"\n'
    )
    plain = load(file)
    assert (plain.rounds, plain.algorithm) == (3, Choice("fedprox", {"mu": 0.5}))
    assert plain.data == str(tmp_path / "pictures")  # relative to the file that names it
    changed = load(
        file, ["rounds=9", "algorithm.mu=0.1", "partition.alpha=2", "data=none", "max_norm=5", "trust=krum:f=1"]
    )
    assert (changed.rounds, changed.data, changed.max_norm) == (9, None, 5.0)
    assert changed.algorithm == Choice("fedprox", {"mu": "0.1"})
    assert changed.partition == Choice("dirichlet", {"alpha": "2"}, "0.3")
    assert changed.trust == Choice("krum", {"f": "1"})


def test_absolute_folders_stay_and_npz_tasks_are_found_beside_the_file(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(f'task = "own.npz"\ndata = "{tmp_path / "x"}"\n')
    assert (load(file).task, load(file).data) == (str(tmp_path / "own.npz"), str(tmp_path / "x"))


def test_a_runs_own_file_loads_again(tmp_path: Path) -> None:
    experiment = Experiment(rounds=5, algorithm=Choice("fedprox", {"mu": 0.5}), data=str(tmp_path))
    file = tmp_path / "experiment.json"
    file.write_text(json.dumps({"schema": 1, **experiment.as_json()}))
    assert load(file) == experiment


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("e.toml", b"rounds = ", "is not valid TOML"),
        ("e.json", b"{", "is not valid JSON"),
        ("e.json", b"[1]", "must hold keys and values"),
        ("e.toml", b"\xff\xfe", "is not text in UTF-8"),
        ("e.toml", b"data = 3", "data: expected text, got 3."),
        ("e.toml", b"lr = nan", "lr: expected a number, got nan."),
        ("e.toml", b"epocs = 3", "did you mean 'epochs'?"),
        ("e.toml", b'data = "a\\u0000b"', "holds the character NUL"),
        ("e.json", b'{"start": "\\u0000"}', "holds the character NUL"),
        ("e.toml", b'modules = "' + b"m" * 5000 + b'"', "modules: cannot read the folder"),
    ],
)
def test_a_file_that_is_no_experiment(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(HoldfastError) as error:
        load(tmp_path / name)
    assert says in str(error.value)


def test_a_file_with_a_byte_order_mark_or_the_home_of_nobody_is_read(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_bytes(
        b'\xef\xbb\xbfrounds = 3\nabsence = {name = "feddig", policy = "~nobody-here/p.toml"}'
    )
    experiment = load(tmp_path / "e.toml")
    assert experiment.rounds == 3
    assert experiment.absence.options["policy"] == str(tmp_path / "~nobody-here" / "p.toml")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"Cannot read .*none.toml: No such file or directory\."):
        load(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("rounds", "--set 'rounds': expected key=value."),
        ("algoritm.mu=1", "'algoritm' has no options; did you mean 'algorithm'?"),
        ("lr.x=1", "'lr' has no options"),
        ("method.mu=1", "'method' has no options"),
    ],
)
def test_wrong_changes(change: str, says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        set_key({}, change)
    assert says in str(error.value)


def test_an_option_changed_on_the_usual_choice() -> None:
    table: dict[str, object] = {}
    set_key(table, "partition.alpha=0.7")
    assert table == {"partition": {"name": "dirichlet:0.1", "alpha": "0.7"}}
    set_key(table, "data = a=b")  # only the first sign divides
    assert table["data"] == " a=b"


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("fedavg", {"algorithm": "fedavg"}),
        ("uniform+feddig+fedprox:mu=0.1", {"trust": "uniform", "absence": "feddig", "algorithm": "fedprox:mu=0.1"}),
        ("feddig", {"absence": "feddig"}),
        ("fedavg+engine_helpers:Careful", {"algorithm": "fedavg", "trust": "engine_helpers:Careful"}),
        ("engine_helpers:Careful", {"trust": "engine_helpers:Careful"}),
        (
            "holdfast.algorithms.fedprox:FedProx+holdfast.absence.feddig:FedDig",
            {"algorithm": "holdfast.algorithms.fedprox:FedProx", "absence": "holdfast.absence.feddig:FedDig"},
        ),
        ("scaffold+feddig-paper", {"algorithm": "scaffold", **PRESETS["feddig-paper"]}),
    ],
)
def test_methods(text: str, chosen: dict[str, str]) -> None:
    assert parse_method(text) == chosen


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_whole_experiments(name: str) -> None:
    [made] = combinations(name, Conditions(), None, ["samples=200", "workers=0"])
    assert make_plan(made).method.absence == choose(ABSENCES, made.absence, "absence")


def test_a_named_method_is_exactly_that_and_the_files_other_keys_stay(tmp_path: Path) -> None:
    file = tmp_path / "leaving.toml"
    file.write_text(
        'scenario = "sequential"\nalgorithm = "fedprox:0.1"\nabsence = "feddig"\ntrust = "median"\n'
        "lr = 0.07\nseed = 5\n"
        'attack = "signflip"\nattackers = 1\nprotect = {name = "dp-sgd", epsilon = 3.0}\n'
    )
    made = combinations("fedavg,feddig,krum", Conditions(), file, [])
    chosen = [(str(e.algorithm), str(e.absence), str(e.trust)) for e in made]
    assert chosen == [("fedavg", "none", "auto"), ("fedavg", "feddig", "auto"), ("fedavg", "none", "krum")]
    for experiment in made:
        assert (experiment.scenario.name, experiment.lr, experiment.seed) == ("sequential", 0.07, 5)
        assert (experiment.attack.name, experiment.attackers, experiment.protect.name) == ("signflip", 1, "dp-sgd")
    [other] = combinations("fedavg", Conditions("none", "none", seeds="2"), file, [])
    assert (other.scenario.name, other.attack.name, other.attackers, other.seed) == ("none", "none", 0, 2)
    [whole] = combinations(None, Conditions(), file, [])
    assert whole == load(file)


def test_a_change_beats_a_preset_and_reaches_the_options_of_a_method() -> None:
    preset = combinations("feddig-paper", Conditions(), None, ["absence.spd=8", "encoder=random", "model=features"])[0]
    assert (preset.encoder.name, preset.model.name, preset.trust.name) == ("random", "features", "uniform")
    assert (preset.absence.options["spd"], preset.absence.options["epsilon"]) == ("8", 0.005)
    named = combinations("fedprox:0.1+feddig", Conditions(), None, ["absence.spd=8", "algorithm=fednova", "lr=0.5"])[0]
    assert (str(named.algorithm), str(named.absence), named.lr) == ("fedprox:0.1", "feddig spd=8", 0.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fedporx", "method 'fedporx': 'fedporx' is not known; did you mean 'fedprox'?"),
        ("fedavg+fedprox", "says twice what the algorithm is."),
        ("feddig-paper+feddig", "says twice what the absence is."),
        ("fedavg+", "'' is not known"),
        ("", "'' is not known"),
        ("kurm:f", "cannot import 'kurm' (No module named 'kurm'); is it beside the experiment's file"),
        ("kurm:f", "Of the names that come with Holdfast: did you mean 'krum'?"),
        ("fedavg+engine_helpers:tiny", "engine_helpers:tiny is no class made from FedAvg, Nothing or Trust"),
    ],
)
def test_wrong_methods(text: str, says: str) -> None:
    with pytest.raises(HoldfastError) as error:
        parse_method(text)
    assert says in str(error.value)


@pytest.mark.parametrize("change", ["trust.power=2", "model.width=8", "attack.since=3", "trust=auto:2"])
def test_what_is_left_to_choose_has_no_options(change: str) -> None:
    with pytest.raises(HoldfastError, match=r"'(auto|none)' has no options, got .*; name the \w+ itself"):
        make_plan(from_changes([change]))


def test_data_that_a_task_would_not_read_are_refused(tmp_path: Path) -> None:
    samples = Samples((torch.zeros(8, 2),), torch.arange(8) % 2)
    own = Task("own", samples, samples, ("a", "b"))
    for task, name in (
        (own, "own"),
        ("fashion-mini", "fashion-mini"),
        ("heart", "heart"),
        ("study:task", "study:task"),
    ):
        sentence = f"data: the task {name} brings its own data and reads no others; leave data out."
        with pytest.raises(HoldfastError, match=sentence):
            make_plan(Experiment(task=task, data=str(tmp_path), workers=0))
