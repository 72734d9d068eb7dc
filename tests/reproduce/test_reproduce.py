"""`holdfast reproduce`: what is played, the paper's numbers, the saved files, and going on where it stopped."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli import comparing, reproducing
from holdfast.cli.reproducing import Wish, experiments_of, read_seeds, reproduce_paper, with_data
from holdfast.core.errors import HoldfastError
from holdfast.data.metrics import ACCURACY
from holdfast.models.networks import weights_of
from holdfast.record import Record
from holdfast.reproduce import paper
from holdfast.reproduce.baselines import centralised
from holdfast.reproduce.plans import REPRODUCTIONS, Reproduction, Row, only, reproduction
from holdfast.reproduce.results import APART, LDA, Cell, cells_apart, cells_of, costs_of, findings
from holdfast.runs.experiment import Experiment, from_table
from holdfast.runs.history import History

TINY = ["rounds=3", "samples=300", "workers=0", "model.hidden=8"]


def of_paper(name: str) -> dict[tuple[str, str], Experiment]:
    """The experiments at the paper's scale, without asking for the data."""
    wanted, wish = reproduction(name, "paper"), Wish(name, "paper")
    return {
        (row.name, column.name): from_table(reproducing.table_for(wanted, row, column, 0, wish))
        for row in wanted.rows
        for column in wanted.columns
        if row.columns is None or column.name in row.columns
    }


def test_the_papers_table_1_and_its_text() -> None:
    assert len(paper.TABLE_1) == 6 * 5 + 3
    assert paper.TABLE_1["FedDig", "sequential"] - paper.TABLE_1["FedAvg", "sequential"] == pytest.approx(26.0)
    assert paper.TABLE_1["FedDig", "sequential"] - paper.TABLE_1["FedDig", "none"] == pytest.approx(-5.9)
    assert paper.TABLE_1["FedNova + FedDig", "sequential"] == 80.0
    assert paper.TABLE_2["FedDig", paper.SECONDS] / paper.TABLE_2["FedAvg", paper.SECONDS] == pytest.approx(
        1.87, abs=0.01
    )
    assert paper.TABLE_2["FedDig", paper.DIGESTS] * 1e6 / 139_586 == pytest.approx(1272, abs=1)


def test_the_papers_settings() -> None:
    played = of_paper("feddig-table1")
    dig = played["FedDig", "sequential"]
    assert (dig.task, dig.rounds, dig.batch_size, dig.lr, dig.momentum) == ("emnist", 300, 256, 0.001, 0.9)
    assert (dig.clients, str(dig.partition), str(dig.scenario)) == (4, "dirichlet:0.1", "sequential")
    options = dig.absence.options
    assert (options["spd"], options["epsilon"], options["size"]) == (4, 0.005, 20_000)
    assert (dig.model.name, dig.encoder.name, dig.trust.name) == ("full", "autoencoder", "uniform")
    assert played["FedAvg", "none"].model.name == "cnn"
    cifar = of_paper("feddig-fig12")["FedDig", "cifar10"]
    assert (cifar.batch_size, cifar.absence.options["size"]) == (32, 10_000)
    assert of_paper("feddig-fig12")["FedDig", "fashion-mnist"].absence.options["size"] == 20_000


def test_the_papers_cifar_100_has_mobilenetv2_throughout() -> None:
    """Baselines train it, FedDig encodes with it and reads the picture with it, and P_G has three layers."""
    played = of_paper("feddig-fig12")
    for name in ("FedAvg", "FedProx", "FedNova"):
        assert [played[name, task].model.name for task in ("cifar10", "cifar100")] == ["cnn", "mobilenetv2"]
    dig = played["FedDig", "cifar100"]
    assert (dig.model.name, dig.model.options["image"], dig.encoder.head) == (
        "full",
        "mobilenetv2",
        "mobilenetv2:random",
    )
    assert (dig.batch_size, dig.absence.options["size"], dig.rounds) == (32, 10_000, 300)
    wish = Wish("feddig-fig12", "paper", changes=("encoder.weights=mine.safetensors",))
    wanted = only(reproduction("feddig-fig12", "paper"), ["cifar100"])
    tables = [reproducing.table_for(wanted, row, wanted.columns[0], 0, wish) for row in wanted.rows]
    assert [column.name for column in wanted.columns] == ["cifar100"]
    assert {from_table(table).encoder.options["weights"] for table in tables} == {"mine.safetensors"}


def test_only_some_rows_and_columns() -> None:
    whole = reproduction("feddig-table1", "small")
    some = only(whole, ["none", "FedDig", "FedProx + FedDig"])
    assert [column.name for column in some.columns] == ["none"]
    assert [row.name for row in some.rows] == ["FedDig"], "FedProx + FedDig is played in another column only"
    assert only(whole, []) == whole
    with pytest.raises(HoldfastError, match="has no 'FedDigg'; did you mean 'FedDig'"):
        only(whole, ["FedDigg"])


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_tables_fit_80_columns_and_cut_nothing_off(name: str) -> None:
    wanted = reproduction(name, "small")
    rows = [*wanted.rows, Row("centralised", {}), Row(LDA, {})]
    names = [paper.SIZE, paper.DIGESTS, paper.BYTES, paper.SECONDS] if wanted.cost else [c.name for c in wanted.columns]
    cells = [Cell(row.name, column, (80.0, 91.5), 83.5) for row in rows for column in names]
    console = Console(width=80, file=io.StringIO())
    console.print(reproducing.table(cells))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.count("85.8 ± 8.1") == len(cells)


def test_the_models_have_the_papers_sizes() -> None:
    """4.77 MB for the baselines and 5.77 MB for FedDig, with 62 classes."""
    from holdfast.core.config import Choice, choose
    from holdfast.models.networks import MODELS
    from holdfast.reproduce.plans import PAPER_CNN, PAPER_FULL

    for text, size in ((PAPER_CNN, 4.77), (PAPER_FULL, 5.77)):
        model = choose(MODELS, Choice.parse(text, "model"), "model").build((1, 28, 28), 62, (4, 8, 8))
        assert sum(4 * w.numel() for w in weights_of(model).values()) / 1e6 == pytest.approx(size, abs=0.01)


@pytest.mark.parametrize("name", REPRODUCTIONS)
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_row_and_column_is_an_experiment(name: str, scale: str) -> None:
    wanted, wish = reproduction(name, scale), Wish(name, scale)
    for row in wanted.rows:
        assert row.columns is None or set(row.columns) <= {column.name for column in wanted.columns}
        for column in wanted.columns:
            from_table(reproducing.table_for(wanted, row, column, 0, wish))
    known = {(row.paper, column.name) for row in wanted.rows for column in wanted.columns}
    if not wanted.cost:
        missing = {place for place in wanted.printed if place not in known and place[0] != "centralised"}
        assert not missing, "each of the paper's numbers has a row and a column to stand in"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each reproduction only FedAvg and FedDig, in the first column."""

    def shortened(name: str, scale: str) -> Reproduction:
        whole = reproduction(name, scale)
        rows = [row for row in whole.rows if row.name in ("FedAvg", "FedDig", "FedDig as printed", "FedDig, features")]
        return replace(whole, rows=rows, columns=whole.columns[:1])

    monkeypatch.setattr(reproducing, "reproduction", shortened)


@pytest.mark.usefixtures("few")
def test_a_small_reproduction_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, name = tmp_path / "out", "feddig-fig7a"
    reproduce_paper(name, "small", None, out, "0", TINY, True)
    printed = json.loads(capsys.readouterr().out)
    saved = json.loads((out / "results.json").read_text())
    assert printed["cells"] == saved["cells"]
    assert printed["folder"] == str(out)
    assert "fashion-mini (300 samples), where the paper has EMNIST" in saved["what"]
    cells = {(cell["row"], cell["column"]): cell for cell in saved["cells"]}
    column = reproduction(name, "small").columns[0].name
    assert {(LDA, column), ("centralised", column), ("FedDig", column)} <= cells.keys()
    assert all(0 <= cell["mean"] <= 100 and len(cell["values"]) == 1 for cell in cells.values())
    apart = {(cell["row"], cell["column"]): cell for cell in saved["of_those_away"]}
    assert apart.keys() == {("FedAvg", column), ("FedDig", column)}, "all have left, but from the one place of all data"
    text = (out / "table.md").read_text()
    assert f"{cells['FedDig', column]['mean']:.1f}" in text
    assert APART in text
    assert "77.6" in text
    assert all((out / picture).stat().st_size > 5000 for picture in ("figure.png", "curves.png"))


@pytest.mark.usefixtures("few")
def test_it_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Experiment] = []
    real = comparing.play_one

    def stop_at_third(experiment: Experiment, out: Path, live: object) -> History:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(experiment)
        return real(experiment, out, live)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(reproducing, "play_one", stop_at_third)
        with pytest.raises(SystemExit):
            reproduce_paper("feddig-fig7a", "small", None, tmp_path, "0", TINY, True)
    assert len(list(tmp_path.glob("runs/*/*/model.safetensors"))) == 2
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/model.safetensors")}
    reproduce_paper("feddig-fig7a", "small", None, tmp_path, "0", TINY, True)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())


@pytest.mark.usefixtures("few")
def test_table_2_counts_bytes_and_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reproduce_paper("feddig-table2", "small", None, tmp_path, "0", ["rounds=2", "samples=120", "workers=0"], True)
    cells = {(c["row"], c["column"]): c for c in json.loads(capsys.readouterr().out)["cells"]}
    assert cells["FedAvg", paper.SIZE]["mean"] == pytest.approx(
        4.77 - 4 * 52 * 368 / 1e6, abs=0.01
    )  # 10 classes, not 62
    assert cells["FedDig as printed", paper.BYTES]["mean"] > 1000
    assert cells["FedDig, features", paper.SIZE]["mean"] < 0.1
    assert cells["FedDig as printed", paper.BYTES]["paper"] == 1272
    assert all(cells[row, paper.SECONDS]["mean"] > 0 for row, column in cells if column == paper.SECONDS)


def record(round: int, bytes_up: int, seconds: float) -> Record:
    laps = {"train": seconds, "evaluate": 9.0}
    none: dict[str, object] = {name: {} for name in ("absent", "refused", "weights", "scores", "suspects")}
    return Record(round, **none, stand_ins=[], loss=None, bytes_up=bytes_up, bytes_down=0, seconds=laps, notes=[])  # type: ignore[arg-type]


def test_costs_by_hand() -> None:
    """Two clients; round 0 carries the digests (3,000 bytes more) and is not timed."""
    history = History(Experiment(clients=2), [record(1, 11_000, 50.0), record(2, 8_000, 1.0), record(3, 8_000, 2.0)])
    costs = costs_of(history)
    assert costs[paper.SIZE] == pytest.approx(0.004)
    assert costs[paper.SECONDS] == pytest.approx(1.5)
    assert paper.DIGESTS not in costs


def test_what_is_said_of_the_numbers() -> None:
    wanted = reproduction("feddig-table1", "small")
    cells = [
        Cell("FedAvg", "none", (80.0,)),
        Cell("FedDig", "none", (84.0, 86.0)),
        Cell(LDA, "none", (85.0,)),
    ]
    said = findings(wanted, cells)
    assert said == [
        "none: FedDig is +5.0 points over FedAvg.",
        "none: FedDig is not ahead of LDA from its digests (85.0 against 85.0).",
    ]
    better = [*cells, Cell("FedNova", "none", (82.0,)), Cell("SCAFFOLD", "none", (87.5,))]
    best = "none: FedDig is +5.0 points over FedAvg, -2.5 over the best baseline, SCAFFOLD (87.5)."
    assert findings(wanted, better)[0] == best
    assert str(cells[1]) == "85.0 ± 1.4"


def test_a_cell_has_the_papers_number_of_its_row() -> None:
    wanted = reproduction("feddig-table1", "small")
    history = History(Experiment(), [record(1, 0, 1.0)])
    object.__setattr__(history.records[0], "metrics", {"accuracy": 0.5})
    place = ("FedDig as printed", "sequential")
    [cell] = cells_of(wanted, {place: [history]}, {})
    assert (cell.mean, cell.paper) == (50.0, 77.6)


def test_those_who_are_away_stand_apart() -> None:
    """Of the last round that was tested; a condition in which somebody's seed has nobody away has no number."""
    measured = {"metrics": {"accuracy": 0.5}, "measure": ACCURACY}
    gone, there = (
        History(Experiment(), [replace(record(1, 0, 1.0), **measured, absent_metrics=absent), record(2, 0, 1.0)])
        for absent in ({"accuracy": 0.25}, {})
    )
    [cell] = cells_apart({("FedDig", "sequential"): [gone, gone], ("FedDig", "none"): [gone, there]})
    assert (cell.row, cell.column, cell.values) == ("FedDig", "sequential", (25.0, 25.0))


def test_data_that_are_not_there() -> None:
    wanted = reproduction("feddig-fig12", "small")
    kept, left_out = with_data(wanted, Wish("feddig-fig12"))
    assert [column.name for column in kept.columns] == ["fashion-mini"]
    assert len(left_out) == 2
    assert "cifar10 is left out" in left_out[0]
    assert "--data" in left_out[0]


def test_another_task_is_read_from_the_folder_that_is_named() -> None:
    wanted = reproduction("feddig-table1", "small")
    row, column = wanted.rows[0], wanted.columns[0]
    wish = Wish("feddig-table1", data=Path("here"), changes=("task=ocr-letters",))
    assert reproducing.table_for(wanted, row, column, 0, wish)["data"] == "here"
    own = replace(wish, changes=("task=ocr-letters", "data=there"))
    assert reproducing.table_for(wanted, row, column, 0, own)["data"] == "there"
    assert "data" not in reproducing.table_for(wanted, row, column, 0, replace(wish, changes=())), (
        "fashion-mini is here"
    )


def test_the_same_experiment_is_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproducing, "make_plan", lambda experiment: None)
    wanted, wish = reproduction("feddig-fig8", "small"), Wish("feddig-fig8", seeds=(0,), changes=tuple(TINY))
    places = experiments_of(wanted, wish)
    assert places["FedDig", "SpD 4"][0].fingerprint == places["FedDig", "across classes"][0].fingerprint
    assert len({e.fingerprint for made in places.values() for e in made}) < len(places)
    assert places["centralised", "SpD 4"] == [centralised(places["FedDig", "SpD 4"][0])]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (("feddig-table3", "small", "0"), "did you mean 'feddig-table"),
        (("feddig-table1", "large", "0"), "say 'small' or 'paper'"),
        (("feddig-table1", "small", "0,x"), "whole numbers"),
        (("feddig-table1", "small", "1,1"), "different"),
        (("feddig-table1", "paper", "0"), "emnist"),
    ],
)
def test_bad_wishes_are_refused_before_anything_is_written(
    call: tuple[str, str, str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.data.sources.hub.installed", lambda: False)  # no download in a test
    name, scale, seeds = call
    with pytest.raises(HoldfastError, match=sentence):
        reproduce_paper(name, scale, None, tmp_path / "out", seeds, [], True)
    assert not (tmp_path / "out").exists()


def test_seeds() -> None:
    assert read_seeds("3, 5") == (3, 5)


def test_an_unknown_name_is_answered_with_all_that_are_known() -> None:
    with pytest.raises(
        HoldfastError, match=r"reproduce: 'foo' is not known; known: .*table1.*, fedtest-fig4, fedtest-fig5"
    ):
        reproduction("foo", "small")
    with pytest.raises(HoldfastError, match="did you mean 'fedtest-fig4'"):
        reproduction("fed-test-fig4", "small")


def test_an_unknown_row_is_answered_with_names_alone() -> None:
    from holdfast.reproduce.plans import only, reproduction

    with pytest.raises(HoldfastError) as error:
        only(reproduction("feddig-table2", "small"), ["nope"])
    assert "known: ," not in str(error.value)
