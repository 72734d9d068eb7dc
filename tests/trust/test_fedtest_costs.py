"""The cost of testing and the choice of testers by their links; the figures' harness on a toy."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from engine_helpers import experiment
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.reproducing_fedtest import reproduce_fedtest
from holdfast.core.config import Choice, choose
from holdfast.core.errors import HoldfastError
from holdfast.core.types import size
from holdfast.jobs import packed
from holdfast.play import run
from holdfast.reproduce import fedtest
from holdfast.reproduce.fedtest import METHODS, SCALES, Curve, experiments_of, findings
from holdfast.runs.build import make_plan
from holdfast.runs.experiment import Experiment
from holdfast.trust import TRUSTS, costs
from holdfast.trust.costs import Links, cheapest_testers, collection_seconds, cost_of_testing, read_links
from holdfast.trust.measures import ask_for_accuracies


def links(n: int, seed: int) -> Links:
    generator = torch.Generator().manual_seed(seed)
    up = (1 + 9 * torch.rand(n, generator=generator)).tolist()
    return Links(up, (1 + 9 * torch.rand(n, n, generator=generator)).tolist())


def test_slots_and_bytes_by_hand() -> None:
    """Four clients, one tester, 100-byte models: three are tested; the tester sends its own and three accuracies."""
    direct, relayed = cost_of_testing(4, 1, 100), cost_of_testing(4, 1, 100, relayed=True)
    assert (direct.slots, direct.slots_to_test, direct.bytes_up) == (4, 3, 400 + 12)
    assert (direct.bytes_heard, direct.bytes_down) == (300, 0)
    assert (relayed.bytes_heard, relayed.bytes_down) == (0, 300)
    both = cost_of_testing(4, 2, 100, relayed=True, cross_test=True)
    assert (both.slots_to_test, both.bytes_down, both.bytes_up) == (4, 600, 400 + 24)
    assert cost_of_testing(4, 0, 100).bytes_up == 400
    for wrong in ((4, 5, 100), (0, 0, 100), (4, -1, 100)):
        with pytest.raises(HoldfastError, match="not possible"):
            cost_of_testing(*wrong)
    with pytest.raises(HoldfastError, match="relay"):
        cost_of_testing(4, 2, 100, cross_test=True)


def test_a_run_counts_what_the_model_says() -> None:
    """The relay sends a tester all updates and the model; the formula counts the models it tests, all but its own."""
    settings = Experiment(clients=4, samples=200, model="linear", rounds=1, workers=0)  # type: ignore[arg-type]
    plain, tested = run(settings), run(replace(settings, trust=Choice.parse("fedtest:2", "trust")))
    assert tested.state is not None
    bytes_of_model = size(tested.state.model)
    formula = cost_of_testing(4, 2, bytes_of_model, relayed=True, cross_test=True)
    assert tested.bytes_up - plain.bytes_up == formula.bytes_up - 4 * bytes_of_model
    sent = size(packed(ask_for_accuracies(tested.state.model, {}, []))[0]) + 4 * bytes_of_model
    assert tested.bytes_down - plain.bytes_down == 2 * sent >= formula.bytes_down


@given(st.integers(2, 7), st.data())
@settings(max_examples=30)
def test_the_cheapest_testers_are_the_cheapest(n: int, data: st.DataObject) -> None:
    k, some = data.draw(st.integers(1, n)), links(n, data.draw(st.integers(0, 99)))
    best = min(collection_seconds(some, chosen, 1) for chosen in itertools.combinations(range(n), k))
    assert collection_seconds(some, cheapest_testers(some, k), 1) == pytest.approx(best)
    with mock.patch.object(costs, "EXACT", 0):  # by exchanges: never better, and rarely much worse
        found = cheapest_testers(some, k)
    assert len(set(found)) == k
    assert best * (1 - 1e-9) <= collection_seconds(some, found, 1) <= 1.3 * best


def test_links_and_candidates_are_checked() -> None:
    assert cheapest_testers(links(6, 0), 2, candidates=[1, 4]) == [1, 4]
    with pytest.raises(HoldfastError, match="not possible"):
        cheapest_testers(links(3, 0), 4)
    with pytest.raises(HoldfastError, match="3 rows"):
        Links([1.0] * 3, [[1.0] * 3])
    with pytest.raises(HoldfastError, match="above zero"):
        Links([1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(HoldfastError, match="they tell of clients 0 to 2, and tester 7 is none"):
        collection_seconds(links(3, 0), [7], 10)


def test_a_slow_listener_slows_all_who_send() -> None:
    slow = Links([8.0] * 3, [[8.0, 8.0, 2.0], [8.0, 8.0, 2.0], [8.0, 8.0, 8.0]])
    assert collection_seconds(slow, [2], 16) == 16 / 2 + 16 / 2 + 16 / 8
    assert collection_seconds(slow, [0], 16) == 6.0


FAR = 0  # whom all others reach slowly, and who hears them slowly


def link_file(folder: Path, n: int = 4) -> Path:
    """Everybody at 1000 bytes a second, but to and from client FAR at 100."""
    between = [[100.0 if FAR in (i, j) else 1000.0 for j in range(n)] for i in range(n)]
    path = folder / "links.json"
    path.write_text(json.dumps({"up": [1000.0] * n, "between": between}))
    return path


def test_fedtest_takes_the_testers_with_the_cheapest_links_and_tells_the_cost(tmp_path: Path) -> None:
    """Of four, 1 and 2 test: client 0 reaches them in s/100, client 3 in s/1000, they the moderator in s/1000 each."""
    spec = {"name": "fedtest", "testers": 2, "links": str(link_file(tmp_path))}
    wanted = Experiment(clients=4, samples=200, model="linear", rounds=2, workers=0, trust=spec)  # type: ignore[arg-type]
    history = run(wanted)
    assert history.state is not None
    s = size(history.state.model)
    note = (
        "testers, by their links: 1, 2; 4 slots, 2 of them until all others are tested, "
        f"{4 * s + 2 * 2 * 4:,} bytes to the moderator, {2 * 2 * s:,} heard by testers, "
        f"{0.013 * s:.3g} s until all models are sent"
    )
    assert [list(record.notes) for record in history.records] == [[note], [note]]
    assert history.state.trust["testers"].tolist() == [False, True, True, False]


def test_only_those_who_are_there_are_chosen_by_their_links(tmp_path: Path) -> None:
    """Of clients 0, 2 and 3, the first hears and is heard slowly; client 1, who would be as good as 2, is away."""
    spec = {"name": "fedtest", "testers": 1, "links": str(link_file(tmp_path))}
    away = {"name": "intervals", "away": [[1, 2, 3]]}
    history = run(experiment(model="linear", rounds=2, trust=spec, scenario=away))
    assert [list(record.absent) for record in history.records] == [[], [1]]
    assert [record.notes[0][:36] for record in history.records] == [
        "testers, by their links: 1; 4 slots,",
        "testers, by their links: 2; 3 slots,",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"up": [1, 1], "between": [[1, 1], [1, 1]]}', "it tells the links of 2 clients, and the experiment has 4."),
        ('{"up": [1], "betwen": []}', "there is no key 'betwen'; did you mean 'between'?"),
        ('{"up": [1, 1]}', "links need up, a list of numbers, and between, a list of such lists."),
        ('{"up": ["fast"], "between": [[1]]}', "links need up, a list of numbers"),
        ('{"up": [1, 0], "between": [[1, 1], [1, 1]]}', "links: every rate must be a number above zero"),
        ("[]", "must hold keys and values"),
        ("up = ", "is not valid JSON"),
    ],
)
def test_what_is_wrong_with_a_file_of_links_is_said_before_round_one(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    path.write_text(text)
    with pytest.raises(HoldfastError) as error:
        make_plan(Experiment(clients=4, samples=200, model="linear", trust=f"fedtest:links={path}"))  # type: ignore[arg-type]
    assert sentence in str(error.value)
    assert str(path) in str(error.value)


def test_links_may_be_toml_must_be_there_and_leave_no_other_choice(tmp_path: Path) -> None:
    path = tmp_path / "links.toml"
    path.write_text("up = [1, 2]\nbetween = [[0, 3], [4, 0]]\n")
    assert read_links(path, 2) == Links([1, 2], [[0, 3], [4, 0]])
    with pytest.raises(HoldfastError, match=r"Cannot read .*nowhere\.toml: No such file"):
        read_links(tmp_path / "nowhere.toml", 2)
    with pytest.raises(HoldfastError, match=r"links choose the testers .*, got 'trusted'"):
        choose(TRUSTS, Choice.parse(f"fedtest:choice=trusted,links={path}", "trust"), "trust")


TOY = ["task=fashion-mini", "samples=200", "rounds=2", "workers=0", "model=linear"]


def test_the_figures_are_played_and_told_beside_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice into one folder: the second time all runs are there already, and nothing is played again."""
    monkeypatch.setattr(fedtest, "SCALES", SCALES[:1])
    monkeypatch.delitem(METHODS, "FedDig and jury on features")  # each run takes its time
    for _ in range(2):
        reproduce_fedtest("fedtest-fig5", "small", None, tmp_path, "0", TOY, False)
    found = json.loads((tmp_path / "results.json").read_text())
    assert [(curve["method"], curve["attackers"], curve["scale"]) for curve in found["curves"]] == [
        *((method, attackers, 1) for attackers in (0, 4) for method in METHODS),
        ("FedTest", 4, SCALES[0]),
    ]
    assert [curve["kept"] is None for curve in found["curves"]] == [not curve["attackers"] for curve in found["curves"]]
    assert all(len(curve["accuracy"]) == 2 and len(curve["seeds"]) == 1 for curve in found["curves"])
    assert len(found["findings"]) == 3 + 2 * (len(METHODS) + 2) + 1
    assert "random weights x 0.1" in " ".join(found["findings"])
    assert (tmp_path / "curves.png").stat().st_size > 1000
    folders = [folder for parent in (tmp_path / "runs").iterdir() for folder in parent.iterdir()]
    assert len(folders) == 2 * len(METHODS) + 1
    assert all(len((folder / "environment.jsonl").read_text().splitlines()) <= 2 for folder in folders)


def test_the_figures_need_their_names_scales_and_data(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="fedtest-fig5"):
        experiments_of("fedtest-fig6", None, "small", [0])
    with pytest.raises(HoldfastError, match="say 'small' or 'paper'"):
        reproduce_fedtest("fedtest-fig4", "large", None, tmp_path / "out", "0", [], True)
    with pytest.raises(HoldfastError, match="cifar10"):
        reproduce_fedtest("fedtest-fig4", "small", tmp_path, tmp_path / "out", "0", [], True)
    assert not (tmp_path / "out").exists(), "nothing is begun that cannot be played"
    with pytest.raises(HoldfastError, match="did you mean 'FedTest'"):
        experiments_of("fedtest-fig4", None, "small", [0], (), ["FedTset"])
    some = experiments_of("fedtest-fig4", None, "small", [0], (), ["FedTest"])
    assert list(some) == [("FedTest", 0, 1.0), ("FedAvg", 0, 1.0), ("FedTest", 3, 1.0)]
    assert [key[2] for key in experiments_of("fedtest-fig4", None, "small", [0], (), ["scales"])][-3:] == list(SCALES)
    [paper] = experiments_of("fedtest-fig4", None, "paper", [3])["FedTest", 3, 1.0]
    assert (paper.rounds, paper.samples, paper.clients, paper.attackers, paper.seed) == (100, None, 20, 3, 3)


def test_the_claim_is_judged_both_ways() -> None:
    slow = Curve("FedAvg", 0, [[0.1 * k for k in range(1, 11)]])
    late = Curve("accuracy-based", 0, [[0.0] * 10])
    fast = Curve("FedTest", 0, [[0.95] * 10])
    assert "five-fold speed-up is there (1 rounds against 9)" in findings("fedtest-fig4", [fast, slow, late])[-1]
    same = Curve("FedTest", 0, slow.seeds)
    assert "no five-fold speed-up" in findings("fedtest-fig4", [same, slow, late])[-1]
    never = Curve("FedTest", 0, [[0.0] * 10])
    told = findings("fedtest-fig4", [never, slow, late])
    assert "do not come near" in told[-1]
    assert "more than 10" in told[2]


def test_a_curve_is_the_mean_over_seeds() -> None:
    curve = Curve("FedTest", 0, [[0.2, 0.4, 0.4, 0.4], [0.4, 0.6, 0.6, 0.6]])
    assert curve.accuracy == pytest.approx([0.3, 0.5, 0.5, 0.5])
    assert (curve.final, curve.deviation) == (pytest.approx(0.5), pytest.approx(0.1 * 2**0.5))
