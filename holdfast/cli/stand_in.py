"""An experiment on made-up records, where nobody's may be opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.data.tables.schema import read_schema
from holdfast.data.tables.stand_in import write_stand_in
from holdfast.runs.experiment import Experiment, is_schema

LEAST = 20  # records of a member


def on_stand_in(experiment: Experiment, records: str | None, folder: Path) -> tuple[Experiment, str]:
    """The experiment on made-up records, and a sentence that says so; as it is where nobody asks for them."""
    if records is None:
        if is_schema(experiment.task) and experiment.data is None:
            raise HoldfastError(
                "privacy plan: this experiment has no records on this machine; say how many each member has, as in "
                "--records 300,120, and so many are made up from the schema."
            )
        return experiment, ""
    if not is_schema(experiment.task):
        raise HoldfastError("--records: they are made up from a table's schema; name an experiment whose task is one.")
    sizes = [int(size) if size.strip().isdecimal() else 0 for size in records.split(",")]
    names = experiment.names or tuple(f"site-{i}" for i in range(experiment.clients or len(sizes)))
    sizes = sizes * len(names) if len(sizes) == 1 else sizes
    if len(sizes) != len(names) or min(sizes) < LEAST or max(sizes) > 10**6:
        raise HoldfastError(
            f"--records {records!r}: expected one number, or one for each of {len(names)} members, of {LEAST} to a "
            "million."
        )
    data = write_stand_in(read_schema(Path(experiment.task)), names, sizes, folder)
    whole = replace(experiment, data=str(data), test=None, names=names, clients=len(names))
    return whole, (
        f"On {sum(sizes):,} made-up records, drawn from the schema alone: rows can be compared with each other, but "
        "the accuracies say nothing of real records."
    )
