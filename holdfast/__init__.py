"""Federated learning that holds fast when clients go missing or go bad.

>>> import holdfast
>>> history = holdfast.run(holdfast.Experiment(rounds=1, model="linear", workers=0))
>>> len(history.accuracy)
1

What is named in `__all__` is stable from version 0.2.0 on; everything else may move.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in _HOMES, for type checkers
    from holdfast.absence.base import AbsencePolicy
    from holdfast.algorithms.fedavg import FedAvg as Algorithm
    from holdfast.attacks.contract import Attack
    from holdfast.core.errors import HoldfastError
    from holdfast.core.types import State, Update
    from holdfast.data.kinds import Classes, Counts, Hazards, Labels, Regression, Survival
    from holdfast.data.metrics import WholeMetric
    from holdfast.data.task import Kind, Metric, Samples, Task
    from holdfast.encoders.contract import Encoder
    from holdfast.learning.server_optimizers import ServerOptimizer
    from holdfast.learning.settings import Learning, Optimizer
    from holdfast.play import resume, run
    from holdfast.runs.experiment import Experiment, load
    from holdfast.runs.export import load_model
    from holdfast.runs.history import History
    from holdfast.trust.base import Hearing, Judgement, Testing, Trust

__version__ = "0.2.0"

__all__ = [
    "AbsencePolicy",
    "Algorithm",
    "Attack",
    "Classes",
    "Counts",
    "Encoder",
    "Experiment",
    "Hazards",
    "Hearing",
    "History",
    "HoldfastError",
    "Judgement",
    "Kind",
    "Labels",
    "Learning",
    "Metric",
    "Optimizer",
    "Regression",
    "Samples",
    "ServerOptimizer",
    "State",
    "Survival",
    "Task",
    "Testing",
    "Trust",
    "Update",
    "WholeMetric",
    "load",
    "load_model",
    "resume",
    "run",
]

# Names are imported when first used: `holdfast --help` must not wait for torch.
_HOMES = {
    "AbsencePolicy": "absence.base:AbsencePolicy",
    "Algorithm": "algorithms.fedavg:FedAvg",
    "Attack": "attacks.contract:Attack",
    "Classes": "data.kinds:Classes",
    "Counts": "data.kinds:Counts",
    "Encoder": "encoders.contract:Encoder",
    "Experiment": "runs.experiment:Experiment",
    "Hazards": "data.kinds:Hazards",
    "Hearing": "trust.base:Hearing",
    "History": "runs.history:History",
    "HoldfastError": "core.errors:HoldfastError",
    "Judgement": "trust.base:Judgement",
    "Kind": "data.task:Kind",
    "Labels": "data.kinds:Labels",
    "Learning": "learning.settings:Learning",
    "Metric": "data.task:Metric",
    "Optimizer": "learning.settings:Optimizer",
    "Regression": "data.kinds:Regression",
    "Samples": "data.task:Samples",
    "ServerOptimizer": "learning.server_optimizers:ServerOptimizer",
    "State": "core.types:State",
    "Survival": "data.kinds:Survival",
    "Task": "data.task:Task",
    "Testing": "trust.base:Testing",
    "Trust": "trust.base:Trust",
    "Update": "core.types:Update",
    "WholeMetric": "data.metrics:WholeMetric",
    "load": "runs.experiment:load",
    "load_model": "runs.export:load_model",
    "resume": "play:resume",
    "run": "play:run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    module, _, home = _HOMES[name].partition(":")
    return getattr(import_module(f"holdfast.{module}"), home)
