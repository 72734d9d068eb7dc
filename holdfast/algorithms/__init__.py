"""How clients learn and how their updates are averaged: one short file each.

How a step is taken belongs in learning/, who is believed in trust/.
"""

from __future__ import annotations

from holdfast.algorithms.adabest import AdaBest
from holdfast.algorithms.fedavg import FedAvg
from holdfast.algorithms.fedbn import FedBN
from holdfast.algorithms.feddyn import FedDyn
from holdfast.algorithms.fednova import FedNova
from holdfast.algorithms.fedprox import FedProx
from holdfast.algorithms.lac import Lac
from holdfast.algorithms.mime import Mime
from holdfast.algorithms.mimelite import MimeLite
from holdfast.algorithms.oneshot import OneShot
from holdfast.algorithms.scaffold import Scaffold

__all__ = [
    "ALGORITHMS",
    "AdaBest",
    "FedAvg",
    "FedBN",
    "FedDyn",
    "FedNova",
    "FedProx",
    "Lac",
    "Mime",
    "MimeLite",
    "Scaffold",
]

ALGORITHMS: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "adabest": AdaBest,
    "scaffold": Scaffold,
    "lac": Lac,
    "mime": Mime,
    "mimelite": MimeLite,
    "fedbn": FedBN,
    "oneshot": OneShot,
}
