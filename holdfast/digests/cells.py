"""What a digest says of each class, whatever its mode: how many samples, where they lie, how far rows scatter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.context import Context
from holdfast.core.types import Tensors
from holdfast.digests.digest import Digest
from holdfast.digests.moments import MomentDigest
from holdfast.digests.received import open_for, open_moments_for
from holdfast.digests.release_options import ReleaseOptions
from holdfast.privacy.moment_noise import distance

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
FEW = 4  # samples of a class, below which its mean says too little


class Cells(NamedTuple):
    """What a digest says of each class."""

    counts: Values  # (classes,): samples
    means: Values  # (classes, k)
    scatter: Values  # (k, k): within classes
    rows: float  # that the scatter is a sum of
    rest: Values | None = None  # (rows, k): what each row of a mixed digest lies from its class means
    classes: NDArray[np.int64] | None = None  # (rows,): the class that most of it is
    noise: Values | float = 0.0  # (classes,): variance in a coordinate of a mean, of noise that rows do not show

    @property
    def rows_of(self) -> Values:
        """The rows of each class, (classes,)."""
        return np.asarray(self.counts * self.rows / max(float(self.counts.sum()), 1.0))

    @property
    def noises(self) -> Values:
        return np.broadcast_to(self.noise, self.counts.shape)


def cells_of(options: ReleaseOptions, context: Context, sealed: Tensors) -> Cells:
    """What a digest says of each class, whatever its mode."""
    if options.mode == "moments":
        return moment_cells(open_moments_for(options, context, sealed))
    return mixed_cells(open_for(context, sealed))


def mixed_cells(digest: Digest) -> Cells:
    """E[d | y] = M' y: class means are the least-squares fit of the features to the soft labels."""
    x, y = digest.features.flatten(1).double().numpy(), digest.labels.double().numpy()
    mass = y.sum(0)
    means = np.zeros((y.shape[1], x.shape[1]))
    means[mass > 0] = np.linalg.lstsq(y[:, mass > 0], x, rcond=1e-6)[0]
    rest = x - y @ means
    counts, free = mass * digest.used / len(x), max(1, len(x) - int((mass > 0).sum()))
    return Cells(counts, means, rest.T @ rest, free, rest, y.argmax(1))


def moment_cells(digest: MomentDigest) -> Cells:
    """Of noisy moments only the cells with enough samples count; their shared second moment is the spread, once what a
    residual of length 1 stands for, on the mean over records, is put in."""
    counts = np.where(digest.trusted, digest.counts, 0.0)
    rows = max(1.0, float(counts.sum()))
    scatter = digest.shared * float((counts * distance(digest.radii) ** 2).sum()) / rows
    return Cells(counts, digest.means, scatter, rows, noise=digest.mean_noise**2)
