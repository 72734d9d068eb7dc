"""What a notebook shows: a run, a digest and a privacy report as small tables, and nobody's text as code."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from report_helpers import judged, record

import holdfast
from holdfast.audit.findings import Findings
from holdfast.core.cards import curve
from holdfast.data.task import Samples, Task
from holdfast.digests.digest import Digest
from holdfast.runs.experiment import Experiment
from holdfast.runs.history import History
from holdfast.runs.notebook import notebook_bar


def test_a_history_shows_itself() -> None:
    history = History(Experiment(), [judged(t, value) for t, value in enumerate((0.2, 0.4, 0.495, 0.496, 0.515), 1)])
    shown = history._repr_html_()
    assert "50.2% (mean of the last 3 tests)" in shown
    assert "fedavg on fashion-mini" in shown
    assert shown.count("<polyline") == 1
    assert "<polyline" not in History(Experiment(), [record(1)])._repr_html_()
    assert repr(history).startswith("<History: fedavg on fashion-mini under none, accuracy 50.2% after 5 rounds;")


def test_texts_are_no_code() -> None:
    history = History(Experiment(task="<script>alert(1)</script>.npz"), [judged(1, 0.5)])
    assert "<script>" not in history._repr_html_()
    assert "<b>" not in curve([1.0, 2.0], "<b>")


def test_a_curve_says_how_far_it_goes() -> None:
    small, level = curve([0.926, 0.925, 0.924], "AUROC"), curve([1.0, 1.0], "AUROC")
    assert ">0.926</text>" in small
    assert ">0.924</text>" in small
    assert level.count("</text>") == 1
    assert 'points="0.0,30.0 260.0,30.0"' in level


def test_a_history_is_drawn() -> None:
    history = History(Experiment(), [judged(1, 0.2), record(2), judged(3, 0.4)])
    axes = history.plot(Figure().subplots())
    [line] = axes.lines
    assert line.get_xdata().tolist() == [1, 3]
    assert line.get_ydata().tolist() == [0.2, 0.4]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("round", "test accuracy")


def test_a_digest_shows_itself() -> None:
    digest = Digest(torch.zeros(3, 8), torch.ones(3, 2) / 2, "ward", "f" * 64, 4, "across", "equal", "none", 13, 12)
    shown = digest._repr_html_()
    assert "Digest for ward" in shown
    assert "12 of 13, 4 mixed in each (across)" in shown


def test_findings_show_the_verdict_and_every_channel() -> None:
    channel = SimpleNamespace(name="accuracies", state="open", says="exactly")
    found: Any = SimpleNamespace(
        verdict="NO GUARANTEE",
        epsilon_total=float("inf"),
        epsilon_protected=3.0,
        delta=1e-5,
        channels=[channel],
        subject=SimpleNamespace(name="run"),
    )
    shown = Findings._repr_html_(found)
    assert "NO GUARANTEE" in shown
    assert "infinite" in shown
    assert "open: exactly" in shown


def test_a_run_in_a_notebook_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no more than IPython's own display, which a kernel always has."""
    shown: list[str] = []
    handle = SimpleNamespace(update=shown.append)

    def display(first: str, display_id: bool) -> SimpleNamespace:
        shown.append(first)
        return handle

    tools = SimpleNamespace(HTML=str, display=display)
    kernel: Any = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1), display=tools)
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    samples = Samples((torch.eye(4).repeat(10, 1),), torch.arange(4).repeat(10))
    task = Task("t", samples, samples, tuple("abcd"))
    holdfast.run(Experiment(task=task, clients=2, partition="iid", rounds=2, workers=0, batch_size=4))
    assert [text.partition(":")[0].rpartition("> ")[2] for text in shown] == [f"{n} of 2 rounds" for n in (0, 1, 2)]
    assert shown[-1].endswith("%")
    assert 'value="2"' in shown[-1]
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))  # a shell, no notebook
    assert notebook_bar(3) is None
