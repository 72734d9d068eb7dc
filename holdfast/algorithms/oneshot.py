"""One message: each client sends its digest once, and the model is a head fitted to the digests. Nobody trains.

    w = fit(D_1, ..., D_N)       one exchange; D_i the digest of client i, `fit` one of the heads in heads/

What a digest is, and what it promises, are the options of `absence = "feddig"`; no update leaves a client. The heads in
closed form are the same however records are dealt out. Reference for one-shot heads: Fed3R (Fani et al., ICML 2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class OneShot(FedAvg):
    """One digest from each client and no training; `head` is what is fitted to the digests."""

    one_message: ClassVar[bool] = True

    head: str = "auto"  # of rows kernel (noised: server-step), of moments and sums lda, or what their kind has
