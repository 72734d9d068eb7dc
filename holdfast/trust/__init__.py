"""How much weight each update deserves.

What is checked before any rule sees an update is core/validate.py.
"""

from __future__ import annotations

from holdfast.trust.base import BySamples, Hearing, Judgement, Trust, Uniform
from holdfast.trust.fedtest import FedTest
from holdfast.trust.jury import Jury
from holdfast.trust.robust.clipping import CentredClipping
from holdfast.trust.robust.delayed import Demoa
from holdfast.trust.robust.prepared import Arc, Bucketing, Nnm
from holdfast.trust.robust.rules import Bulyan, GeometricMedian, Krum, Median, MultiKrum, NormClip, Trimmed
from holdfast.trust.server_test import FLTrust, ServerTest

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
    "arc": Arc,
    "bucketing": Bucketing,
    "demoa": Demoa,
    "bulyan": Bulyan,
    "fltrust": FLTrust,
}

__all__ = ["TRUSTS", "BySamples", "Hearing", "Judgement", "Trust", "Uniform"]
