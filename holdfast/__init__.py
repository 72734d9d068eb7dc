"""Federated learning that holds fast when clients go missing or go bad.

>>> import holdfast
>>> history = holdfast.run(holdfast.Experiment(rounds=1, model="linear", workers=0))
>>> len(history.accuracy)
1
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError
    from holdfast.experiment import Experiment, load
    from holdfast.play import resume, run
    from holdfast.runs import History
    from holdfast.tasks import Kind, Metric, Samples, Task
    from holdfast.tasks.kinds import Regression

__all__ = [
    "Experiment",
    "History",
    "HoldfastError",
    "Kind",
    "Metric",
    "Regression",
    "Samples",
    "Task",
    "load",
    "resume",
    "run",
]

# Names are imported when first used: `holdfast --help` must not wait for torch.
_HOMES = {
    "Experiment": "experiment",
    "load": "experiment",
    "HoldfastError": "errors",
    "run": "play",
    "resume": "play",
    "History": "runs",
    "Kind": "tasks",
    "Metric": "tasks",
    "Regression": "tasks.kinds",
    "Samples": "tasks",
    "Task": "tasks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.{_HOMES[name]}"), name)
