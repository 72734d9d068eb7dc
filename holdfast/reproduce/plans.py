"""What is to be played for each of the paper's tables and figures: rows x columns x seeds of experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from holdfast.absence import FedDig
from holdfast.core.errors import HoldfastError, nearest
from holdfast.reproduce import paper
from holdfast.reproduce.fedtest import FIGURES
from holdfast.runs.presets import FEDDIG_PAPER

Scale = Literal["small", "paper"]
Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A method: the keys it sets, in which columns it is played (none: all), and its name in the paper."""

    name: str
    keys: Keys
    columns: tuple[str, ...] | None = None
    paper: str | None = None


@dataclass(frozen=True)
class Column:
    """A condition: the keys it sets."""

    name: str
    keys: Keys


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper. `beside` names the row whose LDA and centralised training are shown with it."""

    name: str
    title: str
    base: Keys
    rows: Sequence[Row]
    columns: Sequence[Column]
    printed: paper.Numbers = field(default_factory=dict)
    beside: str | None = "FedDig"
    cost: bool = False  # Table II: bytes and seconds instead of accuracies
    remarks: tuple[str, ...] = ()


BASELINES = ("FedAvg", "FedProx", "FedNova", "FedDyn", "AdaBest", "SCAFFOLD")
# The sizes of Table II: 1.19 and 1.44 million weights for 62 classes.
PAPER_CNN, PAPER_FULL = "cnn:hidden=367", "full:hidden=268"
PAPER_MOBILE, PAPER_FULL_MOBILE = "mobilenetv2:batch", "full:image=mobilenetv2,norm=batch"  # CIFAR-100
SMALL = {"task": "fashion-mini", "rounds": 18, "lr": 0.02, "batch_size": 32}
EMNIST = {"task": "emnist", "rounds": 300, "lr": 0.001, "momentum": 0.9, "batch_size": 256}
COMMON = {"clients": 4, "partition": "dirichlet:0.1"}
SAME_FEATURES = "small: FedDig's features and model for the baselines too, so that only the digests differ."
PRINTED = {**FEDDIG_PAPER, "model": PAPER_FULL}


def base_of(scale: Scale) -> dict[str, Any]:
    return {**COMMON, **(SMALL if scale == "small" else EMNIST)}


def baselines(scale: Scale, names: Sequence[str]) -> list[Row]:
    """The paper's baselines: on FedDig's features at small scale, on the paper's plain network at its own."""
    model = "features" if scale == "small" else PAPER_CNN
    return [Row(name, {"algorithm": name.lower(), "model": model}, paper=name) for name in names]


def feddig(scale: Scale) -> Row:
    keys = {"absence": "feddig", "model": "features"} if scale == "small" else PRINTED
    return Row("FedDig", keys, paper="FedDig")


def on_top(row: Row, algorithm: str, name: str) -> Row:
    return Row(name, {**row.keys, "algorithm": algorithm}, ("sequential",), paper=name)


def table_1(scale: Scale) -> Reproduction:
    dig = feddig(scale)
    rows = [*baselines(scale, BASELINES), dig]
    rows += [on_top(dig, "fedprox", "FedProx + FedDig"), on_top(dig, "fednova", "FedNova + FedDig")]
    rows += [on_top(dig, "scaffold", "SCAFFOLD + FedDig")]
    if scale == "small":
        printed = {"absence": "feddig:printed=true", "model": "features"}
        rows.append(Row("FedDig, digests used as printed", printed))
        rows.append(replace(on_top(dig, "adabest", "AdaBest + FedDig"), columns=None))
        rows.append(Row("FedAvg, printed model", {"model": "full", "encoder": "autoencoder"}))
        rows.append(Row("FedDig as printed", FEDDIG_PAPER, paper="FedDig"))
    else:
        rows.append(Row("FedAvg, FedDig's model", {"model": PAPER_FULL, "encoder": "autoencoder"}, paper=None))
        rows.append(
            Row("FedDig, recommended", {"absence": "feddig", "model": "features", "lr": 0.05, "schedule": "cosine"})
        )
    return Reproduction(
        "feddig-table1",
        "Table I: test accuracy in %, after the last round",
        base_of(scale),
        rows,
        [Column(scenario, {"scenario": scenario}) for scenario in paper.SCENARIOS],
        paper.TABLE_1,
        remarks=(SAME_FEATURES,) if scale == "small" else (),
    )


def table_2(scale: Scale) -> Reproduction:
    names = ("FedAvg", "FedProx", "FedNova")
    rows = [Row(name, {"algorithm": name.lower(), "model": PAPER_CNN}, paper=name) for name in names]
    rows.append(Row("FedDig as printed", PRINTED, paper="FedDig"))
    rows.append(Row("FedAvg, features", {"model": "features"}))
    rows.append(Row("FedDig, features", {"absence": "feddig", "model": "features"}))
    rows.append(Row("FedDig, digests used as printed", {"absence": "feddig:printed=true", "model": "features"}))
    return Reproduction(
        "feddig-table2",
        "Table II: what travels, and how long a round takes, with all clients present",
        {**base_of(scale), "rounds": 6, "scenario": "none"},
        rows,
        [Column("", {})],
        paper.TABLE_2,
        beside=None,
        cost=True,
        remarks=("Seconds are of this machine, the paper's of a V100; compare them within a column.",),
    )


def figure_7a(scale: Scale) -> Reproduction:
    return Reproduction(
        "feddig-fig7a",
        "Figure 7a: test accuracy in %, after all clients have left, by the skew of their data",
        {**base_of(scale), "scenario": "sequential"},
        [*baselines(scale, ["FedAvg", "FedProx", "FedNova"]), feddig(scale)],
        [Column(f"Dirichlet {mu}", {"partition": f"dirichlet:{mu}"}) for mu in (0.1, 0.5, 1.0)],
        paper.FIGURE_7A,
        remarks=(SAME_FEATURES,) if scale == "small" else (),
    )


def figure_7b(scale: Scale) -> Reproduction:
    dig, plain = feddig(scale), baselines(scale, ["FedAvg"])[0]
    rows = [
        Row(f"{row.name}, {scenario}", {**row.keys, "scenario": scenario}, paper=f"{row.name}, {scenario}")
        for row in (plain, dig)
        for scenario in ("none", "sequential")
    ]
    return Reproduction(
        "feddig-fig7b",
        "Figure 7b: test accuracy in %, by the number of clients; a quarter of them leaves four times",
        base_of(scale),
        rows,
        [Column(f"{clients} clients", {"clients": clients}) for clients in (4, 8, 16, 32, 64)],
        paper.FIGURE_7B,
        beside="FedDig, none",
        remarks=("The paper's text: none and sequential stay about 3 points apart, from 4 to 64 clients.",),
    )


def figure_8(scale: Scale) -> Reproduction:
    dig = feddig(scale)
    usual = {"name": "feddig", "strategy": "across"} if scale == "small" else cast(Keys, FEDDIG_PAPER["absence"])
    epochs = int(usual.get("server_epochs", FedDig().server_epochs))

    def column(name: str, **options: object) -> Column:
        return Column(name, {"absence": {**usual, **options}})

    columns = [column(f"SpD {spd}", spd=spd) for spd in (1, 2, 4, 8)]
    columns += [
        column(f"SpD {spd}, as many steps", spd=spd, server_epochs=epochs * spd) for spd in (2, 4, 8)
    ]  # a larger SpD makes fewer digests, hence fewer steps of the server: half of what it seems to cost
    columns += [column("across classes", spd=4), column("within a class", spd=4, strategy="within")]
    columns += [column("only mixing", spd=4, epsilon=None), column("only noise", spd=1, epsilon=0.005)]
    columns += [column("mixing and noise", spd=4, epsilon=0.005)]
    return Reproduction(
        "feddig-fig8",
        "Figure 8: test accuracy in %, after all clients have left, by how digests are protected",
        {**base_of(scale), "scenario": "sequential"},
        [dig],
        columns,
        paper.FIGURE_8,
        remarks=("The epsilon of the noise is the paper's nominal 0.005 at S 20,000: see `holdfast digest show`.",),
    )


def figure_12(scale: Scale) -> Reproduction:
    fashion = "fashion-mini" if scale == "small" else "fashion-mnist"
    few = {"samples": 5000} if scale == "small" else {"batch_size": 32}
    columns = [Column(fashion, {"task": fashion}), *(Column(t, {"task": t, **few}) for t in ("cifar10", "cifar100"))]
    plain, remarks = baselines(scale, ["FedAvg", "FedProx", "FedNova"]), (SAME_FEATURES,)
    rows = [*plain, feddig(scale)]
    if scale == "paper":
        columns[2] = Column("cifar100", {**columns[2].keys, "encoder": "mobilenetv2:random"})
        smaller = {**PRINTED, "absence": {**cast(Keys, FEDDIG_PAPER["absence"]), "size": 10_000}}  # S, for CIFAR
        rows = [replace(row, columns=(fashion, "cifar10")) for row in plain]
        rows += [Row(row.name, {**row.keys, "model": PAPER_MOBILE}, ("cifar100",)) for row in plain]
        rows += [replace(feddig(scale), columns=(fashion,)), Row("FedDig", smaller, ("cifar10",))]
        rows += [Row("FedDig", {**smaller, "model": PAPER_FULL_MOBILE}, ("cifar100",))]
        remarks = (
            "CIFAR-100: the paper encodes with layers of a MobileNetV2. No weights come with Holdfast, so they are "
            "random here; with weights at hand, say --only cifar100 --set encoder.weights=FILE.safetensors.",
        )
    return Reproduction(
        "feddig-fig12",
        "Figure 12: test accuracy in %, after all clients have left, by data set",
        {**base_of(scale), "scenario": "sequential"},
        rows,
        columns,
        paper.FIGURE_12,
        remarks=remarks,
    )


REPRODUCTIONS: dict[str, Callable[[Scale], Reproduction]] = {
    "feddig-table1": table_1,
    "feddig-table2": table_2,
    "feddig-fig7a": figure_7a,
    "feddig-fig7b": figure_7b,
    "feddig-fig8": figure_8,
    "feddig-fig12": figure_12,
}


def reproduction(name: str, scale: str) -> Reproduction:
    """What a name of the command line stands for."""
    if name not in REPRODUCTIONS:
        raise HoldfastError(
            f"reproduce: {name!r} is not known; {nearest(name, [*REPRODUCTIONS, *FIGURES, 'tournament'])}"
        )
    if scale == "small" or scale == "paper":
        return REPRODUCTIONS[name](scale)  # type: ignore[arg-type]  # it is one of the two words
    raise HoldfastError(f"reproduce --scale: {scale!r} is not known; say 'small' or 'paper'.")


def only(wanted: Reproduction, names: Sequence[str]) -> Reproduction:
    """A reproduction cut down to some of its columns or rows."""
    columns, rows = [column.name for column in wanted.columns], list(dict.fromkeys(row.name for row in wanted.rows))
    for name in names:
        if name not in columns and name not in rows:
            known = [other for other in (*columns, *rows) if other]  # a table of one column does not name it
            raise HoldfastError(f"reproduce --only: {wanted.name} has no {name!r}; {nearest(name, known)}")
    kept = [column for column in wanted.columns if column.name in names] or list(wanted.columns)
    there = {column.name for column in kept}
    some = [row for row in wanted.rows if row.name in names] or list(wanted.rows)
    return replace(wanted, columns=kept, rows=[row for row in some if row.columns is None or there & set(row.columns)])
