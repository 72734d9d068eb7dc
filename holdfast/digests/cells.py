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
    labels: Values | None = None  # (classes, classes): Y'Y of a mixed digest's soft labels Y
    noise: Values | float = 0.0  # (classes,): variance in a coordinate of a mean, of noise that rows do not show

    @property
    def rows_of(self) -> Values:
        """The rows of each class, (classes,)."""
        return np.asarray(self.counts * self.rows / max(float(self.counts.sum()), 1.0))

    @property
    def inverse_rows(self) -> Values:
        """The variance of means as a share of rows', (classes, classes): 1/r, or (Y'Y)^-1 where rows mix classes."""
        if self.labels is not None:
            return np.asarray(np.linalg.pinv(self.labels, rcond=1e-9, hermitian=True))
        return np.diag(1 / np.maximum(self.rows_of, 1e-9))

    @property
    def has_rows(self) -> Flags:
        """Which classes are what most of some row is, (classes,)."""
        return self.counts > 0 if self.classes is None else np.isin(np.arange(len(self.counts)), self.classes)

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
    return Cells(counts, means, rest.T @ rest, free, rest, y.argmax(1), y.T @ y)


def moment_cells(digest: MomentDigest) -> Cells:
    """Of noisy moments only the cells with enough samples count; their shared second moment is the spread, once what a
    residual of length 1 stands for, on the mean over records, is put in."""
    counts = np.where(digest.trusted, digest.counts, 0.0)
    rows = max(1.0, float(counts.sum()))
    scatter = digest.shared * float((counts * distance(digest.radii) ** 2).sum()) / rows
    return Cells(counts, digest.means, scatter, rows, noise=digest.mean_noise**2)
