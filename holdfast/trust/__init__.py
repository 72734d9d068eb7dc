"""How much weight each update deserves."""

from __future__ import annotations

from holdfast.trust.clipping import CentredClipping
from holdfast.trust.fedtest import FedTest
from holdfast.trust.jury import Jury
from holdfast.trust.rules import Bulyan, GeometricMedian, Krum, Median, MultiKrum, Nnm, NormClip, Trimmed
from holdfast.trust.server import FLTrust, ServerTest
from holdfast.trust.weights import BySamples, Hearing, Judgement, Trust, Uniform

TRUSTS: dict[str, type[Trust]] = {
    "samples": BySamples,
    "uniform": Uniform,
    "jury": Jury,
    "fedtest": FedTest,
    "servertest": ServerTest,
    "median": Median,
    "trimmed": Trimmed,
    "krum": Krum,
    "multikrum": MultiKrum,
    "geomedian": GeometricMedian,
    "clipping": CentredClipping,
    "normclip": NormClip,
    "nnm": Nnm,
    "bulyan": Bulyan,
    "fltrust": FLTrust,
}

__all__ = ["TRUSTS", "BySamples", "Hearing", "Judgement", "Trust", "Uniform"]
