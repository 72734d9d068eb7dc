"""FedBN: norm layers stay at home (Li et al., ICLR 2021).

    w <- w + sum_i a_i (w_i - w)      for every weight but those of norm layers, which each client keeps for itself

Scanners and hospitals differ in brightness and contrast more than in what is seen; a norm layer takes that out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import nn

from holdfast.algorithms.fedavg import FedAvg
from holdfast.core.errors import HoldfastError, nearest

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # _NormBase: batch and instance norms


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg of everything but norm layers.

    >>> fedbn = FedBN().fitted(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    >>> fedbn.shares("0.weight"), fedbn.shares("1.weight"), fedbn.shares("1.running_mean")
    (True, False, False)
    """

    home: tuple[str, ...] = ()  # layers that stay at home; none named: all norm layers

    def fitted(self, network: nn.Module) -> Self:
        layers = dict(network.named_modules())
        for name in self.home:
            if name not in layers:
                raise HoldfastError(f"algorithm: the model has no layer {name!r}; {nearest(name, layers)}")
        found = self.home or tuple(name for name, layer in layers.items() if isinstance(layer, NORMS))
        if not found:
            raise HoldfastError("algorithm: fedbn keeps norm layers at home, and the model has none; take fedavg.")
        return replace(self, home=found)

    def shares(self, name: str) -> bool:
        return not any(name.startswith(layer + ".") for layer in self.home)
