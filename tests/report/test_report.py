"""What a report says: in words, as data, as figures; checked against records made by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from report_helpers import busy_run, judged, leaving, make_run, record
from typer.testing import CliRunner

from holdfast.cli.reporting import report, watch
from holdfast.core.errors import HoldfastError
from holdfast.report import save_report
from holdfast.report.figures import mean_curve, save_curves
from holdfast.report.page import page
from holdfast.report.payload import STEPS, grid, happenings, payload, presence, ranges
from holdfast.report.run_data import find_runs, read_story
from holdfast.report.words import headline, labels
from holdfast.runs.experiment import from_table
from holdfast.runs.history import History


def told(*folders: Path) -> list[str]:
    return headline([read_story(folder) for folder in folders])


# In words


def test_the_headline_says_who_kept_and_who_fell(tmp_path: Path) -> None:
    plan = from_table({"clients": 2, "rounds": 8})
    keys = {"scenario": "sequential"}
    kept = make_run(tmp_path / "a", leaving(plan, 0.84, 0.821, True), absence="feddig", **keys)
    fell = make_run(tmp_path / "b", leaving(plan, 0.84, 0.49, False), **keys)
    there = make_run(tmp_path / "c", [judged(t, 0.9) for t in range(1, 9)])
    assert told(kept, fell, there) == [
        "FedAvg + FedDig kept 82.1 % when all 2 clients left; FedAvg fell to 49.0 %.",
        "FedAvg reached 90.0 % with everybody present.",
    ]


def test_a_crash_and_a_refusal_are_not_a_leaving_and_a_lost_class_is_named(tmp_path: Path) -> None:
    died = {0: "its worker process died (signal 11)", 1: "failed in job 'train' of round 1: OSError: gone"}
    crashed = make_run(tmp_path / "a", [judged(t, 0.4, absent=died) for t in range(1, 4)])
    assert told(crashed) == ["FedAvg kept 40.0 % with the jobs of up to 2 of 2 clients failing."]
    refused = {0: "sent a message that was refused: its loss is 'x', not a number"}
    odd = make_run(tmp_path / "b", [judged(t, 0.4, absent=refused, refused={1: "nan"}) for t in range(1, 4)])
    assert "left" not in told(odd)[0]
    assert "with up to 1 of 2 clients' updates refused" in told(odd)[0]
    mixed = [judged(t, 0.4, absent={0: "is not connected", 1: "failed in job 'train'"}) for t in range(1, 4)]
    assert "when 1 of 2 clients left and with the jobs of up to 1" in told(make_run(tmp_path / "c", mixed))[0]
    lost = make_run(tmp_path / "d", [judged(1, 0.4, class_accuracy=[0.6, 0.0, 0.6])])
    assert told(lost) == ["FedAvg reached 40.0 % with everybody present. Class one is at 0 %."]


def test_the_headline_means_over_seeds(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(seed), [judged(1, 0.6 + 0.2 * seed)], seed=seed) for seed in (0, 1)]
    assert told(*runs) == ["FedAvg reached 70.0 % with everybody present."]


def test_clients_that_come_back_did_not_leave(tmp_path: Path) -> None:
    records = [judged(1, 0.5), judged(2, 0.5, absent={1: "away (x)"}), judged(3, 0.5), judged(4, 0.5)]
    assert told(make_run(tmp_path / "a", records)) == ["FedAvg kept 50.0 % while up to 1 of 2 clients were away."]


def test_hostile_clients_are_in_the_headline(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [judged(1, 0.5)], attack="signflip", attackers=1)
    assert told(run) == ["FedAvg reached 50.0 % with 1 of 2 clients hostile (signflip)."]
    [sentences] = told(make_run(tmp_path / "b", [judged(1, 0.5)], attack="backdoor", attackers=1))
    assert sentences.startswith(
        "FedAvg reached 50.0 % with 1 of 2 clients hostile (backdoor). Accuracy does not show a"
    )


def test_the_best_is_held_against_plain_fedavg(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, [judged(1, accuracy)], trust=name)
        for name, accuracy in (("fedtest", 0.8), ("auto", 0.6), ("krum", 0.5))
    ]
    assert told(*runs) == ["FedAvg + FedTest reached 80.0 % with everybody present; FedAvg 60.0 %."]
    assert told(*runs[1:]) == ["FedAvg reached 60.0 % with everybody present; FedAvg + Krum 50.0 %."]


def test_methods_that_hardly_differ_are_not_ranked(tmp_path: Path) -> None:
    names = ("fedavg", "feddyn", "fednova")
    runs = [make_run(tmp_path / n, [judged(1, 0.5 + 0.001 * i)], algorithm=n) for i, n in enumerate(names)]
    assert told(*runs) == [
        "FedNova reached 50.2 % with everybody present; the other 2 methods lie within half a point."
    ]


def test_a_run_without_a_test_says_so(tmp_path: Path) -> None:
    assert told(make_run(tmp_path / "a", [record(1)], finished=False)) == ["No round has been tested yet under none."]


def test_lines_are_named_by_what_sets_them_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(i), [judged(1, 0.5)], lr=lr) for i, lr in enumerate((0.1, 0.2, 0.2))]
    assert labels([read_story(run) for run in runs]) == [
        "FedAvg · lr=0.1",
        "FedAvg · lr=0.2 · 1",
        "FedAvg · lr=0.2 · 2",
    ]


# As data


@pytest.mark.parametrize(
    ("changes", "letter"),
    [
        ({}, "p"),
        ({"absent": {1: "gone"}}, "a"),
        ({"absent": {1: "gone"}, "stand_ins": [1]}, "d"),
        ({"refused": {1: "bad"}}, "r"),
        ({"refused": {1: "bad"}, "stand_ins": [1]}, "q"),
        ({"suspects": {1: "odd"}}, "s"),
        ({"suspects": {1: "odd"}, "refused": {1: "bad"}}, "r"),
    ],
)
def test_presence_has_a_letter_for_each_fate(changes: dict[str, object], letter: str) -> None:
    assert presence(record(1, **changes), 1) == letter
    assert presence(record(1, **changes), 0) == "p"


@given(st.lists(st.none() | st.floats(-3.0, 5.0), min_size=1, max_size=20))
def test_grids_keep_values_to_half_a_step(values: list[float | None]) -> None:
    made = grid([values], -3.0, 5.0)
    if all(value is None for value in values):
        assert made is None
        return
    assert made is not None
    texts = [made["rows"][0][2 * i : 2 * i + 2] for i in range(len(values))]
    for value, text in zip(values, texts, strict=True):
        if value is None:
            assert text == "--"
        else:
            assert abs(-3.0 + 8.0 * int(text, 36) / STEPS - value) <= 4.0 / STEPS + 1e-9


@given(st.lists(st.integers(1, 60), unique=True, min_size=1).map(sorted))
def test_ranges_name_each_round_once(rounds: list[int]) -> None:
    named: list[int] = []
    for part in ranges(rounds, most=99).split(", "):
        first, _, last = part.partition("–")
        named += range(int(first), int(last or first) + 1)
    assert named == rounds


def test_happenings_that_differ_in_numbers_only_are_one() -> None:
    records = [record(t, suspects={1: f"score 0.{t}31 is low"}, absent={0: "away (x)"}) for t in (1, 2, 4)]
    rows = happenings([*records, record(5, absent={0: "did not answer"}, notes=["a note"])])
    assert rows[0] == {"kind": "suspected", "client": 1, "why": "score 0.431 is low", "rounds": "1–2, 4", "count": 3}
    assert sorted((row["kind"], row["why"]) for row in rows[1:]) == [("absent", "did not answer"), ("note", "a note")]


def test_happenings_are_cut_with_a_word_about_it() -> None:
    notes = ["".join(chr(97 + (i // 26**k) % 26) for k in range(3)) for i in range(250)]
    rows = happenings([record(1, notes=notes)])
    assert len(rows) == 201
    assert rows[-1]["why"] == "50 more are in rounds.jsonl"


def test_the_payload_of_a_run(tmp_path: Path) -> None:
    records = [
        judged(1, 0.5, class_accuracy=[0.5, None, 1.0]),
        record(2, absent={1: "away (x)"}, weights={0: 1.0}, scores={0: -2.0}, credibility={1: 1.0}, loss=None),
    ]
    run = make_run(tmp_path / "a", records, scenario="forever", seed=3)
    told = payload([read_story(run)])["runs"][0]
    assert told["rounds"] == [1, 2]
    assert told["values"] == [0.5, None]
    assert told["presence"] == ["pp", "pa"]
    assert told["classes"] == ["zero", "one", "two"]
    assert told["classValues"]["rows"][1:] == ["----", "zz--"]
    assert told["weights"] == {"low": 0.0, "high": 1.0, "rows": ["90zz", "qz--"]}  # 324 and 971 of 1,295
    assert told["scores"] == {"low": -2.0, "high": -1.0, "rows": ["--00", "----"]}
    assert told["credibility"] == {"low": 0.0, "high": 1.0, "rows": ["----", "--zz"]}
    assert (told["scenario"], told["seed"], told["finished"], told["hostile"]) == ("forever", 3, True, [])
    assert told["seconds"]["server_step"] == [0.125, 0.125]
    json.dumps(told, allow_nan=False)


def test_a_run_of_old_that_says_nothing_of_credibility_still_opens(tmp_path: Path) -> None:
    run = make_run(tmp_path / "old", [judged(1, 0.5)])
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert [line.pop("credibility") for line in lines] == [{}]
    (run / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert payload([read_story(run)])["runs"][0]["credibility"] is None


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    runs = [read_story(make_run(tmp_path / place / "run", [judged(1, 0.5)])) for place in "ab"]
    assert [one["id"] for one in payload(runs)["runs"]] == ["run", "run (2)"]


def test_classes_of_a_run_that_goes_on(tmp_path: Path) -> None:
    known = make_run(tmp_path / "a", [judged(1, 0.5)], finished=False)
    own = make_run(tmp_path / "b", [record(1), judged(2, 0.5)], finished=False, task="mine.npz")
    assert read_story(known).class_names[0] == "T-shirt"
    assert read_story(own).class_names == ["0", "1", "2"]


# As a page and as figures


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text = page(payload([read_story(make_run(tmp_path / "a", [judged(1, 0.5)]))]))
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "connect-src" not in text
    assert len(re.findall(r"script-src 'sha256-[A-Za-z0-9+/]{43}='", text)) == 1


def test_the_same_runs_make_the_same_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [judged(t, 0.5) for t in range(1, 4)])
    figures = [tmp_path / f"{n}.{kind}" for n in "xy" for kind in ("png", "pdf", "svg")]
    save_report([run], tmp_path / "x.html", figures[:3])
    save_report([run], tmp_path / "y.html", figures[3:])
    for kind in ("html", "png", "pdf", "svg"):
        assert (tmp_path / f"x.{kind}").read_bytes() == (tmp_path / f"y.{kind}").read_bytes()
    heads = [path.read_bytes()[:5] for path in figures[:3]]
    assert heads == [b"\x89PNG\r", b"%PDF-", b"<?xml"]
    assert "FedAvg" in figures[2].read_text()  # text stays text


def test_curves_of_runs_of_unequal_length(tmp_path: Path) -> None:
    long = make_run(tmp_path / "a", [judged(1, 0.2), record(2), judged(3, 0.6)])
    short = make_run(tmp_path / "b", [judged(1, 0.4)], finished=False, seed=1)
    rounds, mean, deviation = mean_curve([read_story(long), read_story(short)])
    assert rounds.tolist() == [1, 3]
    assert mean.tolist() == pytest.approx([0.3, 0.6])
    assert deviation.tolist() == pytest.approx([0.02**0.5, 0.0])  # of 0.2 and 0.4: sqrt(2 x 0.01 / 1)


def test_curves_of_a_comparison(tmp_path: Path) -> None:
    """As `holdfast compare` saves them: situations side by side, runs of unequal length, one of them under attack."""
    plans = [from_table({"clients": 2, "rounds": 3}), from_table({"clients": 2, "attack": "signflip", "attackers": 1})]
    histories = [History(plans[0], [judged(1, 0.2), record(2), judged(3, 0.6)]), History(plans[1], [judged(1, 0.4)])]
    save_curves(histories, tmp_path / "curves.svg")
    words = (tmp_path / "curves.svg").read_text()
    assert "signflip x1" in words
    assert re.search("hostile: client [01]<", words)


# Refusals, and the commands


def test_runs_are_found_in_folders(tmp_path: Path) -> None:
    one, two = (make_run(tmp_path / "all" / name, [judged(1, 0.5)]) for name in "ab")
    assert find_runs([tmp_path / "all", one]) == [one, two]
    (tmp_path / "empty").mkdir()
    for path, words in ((tmp_path / "empty", "holds no run"), (tmp_path / "lost", "does not exist")):
        with pytest.raises(HoldfastError, match=words):
            find_runs([path])


def test_wrong_names_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [judged(1, 0.5)])
    with pytest.raises(HoldfastError, match=r"must end in \.png"):
        save_report([run], tmp_path / "p.html", [tmp_path / "x.jpg"])
    with pytest.raises(HoldfastError, match="make that folder first"):
        save_report([run], tmp_path / "no" / "p.html")
    assert not (tmp_path / "p.html").exists()
    untested = make_run(tmp_path / "b", [record(1)], finished=False)
    with pytest.raises(HoldfastError, match="nothing to draw"):
        save_report([untested], None, [tmp_path / "x.png"])


def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(report)
    made.command()(watch)
    return made


def test_the_report_command(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [judged(1, 0.5)])
    result = CliRunner().invoke(app(), ["report", str(run)])
    assert result.exit_code == 0
    assert "FedAvg reached 50.0 % with everybody present." in result.output
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    result = CliRunner().invoke(app(), ["report", str(run), "--png", str(tmp_path / "f.png")])
    assert result.exit_code == 0
    assert (tmp_path / "f.png").exists()


def test_watch_refuses_what_cannot_be_watched(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [judged(1, 0.5)])
    over = CliRunner().invoke(app(), ["watch", str(run)])
    assert isinstance(over.exception, HoldfastError)
    assert "is finished" in str(over.exception)
    nothing = CliRunner().invoke(app(), ["watch", str(tmp_path / "b")])
    assert "holds no run yet" in str(nothing.exception)


def test_twenty_large_runs_fit_in_eight_megabytes(tmp_path: Path) -> None:
    """One run of 150 rounds x 64 clients, scaled: everything in it grows with rounds and runs."""
    run = busy_run(tmp_path / "a", rounds=150, clients=64, seed=0, number=0)
    data = json.dumps(payload([read_story(run)]), separators=(",", ":"))
    assert 20 * 2 * len(data) < 8e6


def test_history_as_a_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    story = read_story(make_run(tmp_path / "a", [judged(1, 0.25), record(2)]))
    frame = History(story.experiment, story.records).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["round"].tolist() == [1, 2]
    assert frame["accuracy"][0] == 0.25
    assert pandas.isna(frame["accuracy"][1])
    assert (frame["weights/0"][1], frame["weights/1"][1]) == (0.25, 0.75)
    assert all(frame[name].dtype.kind in "if" for name in frame)  # flat: numbers only
