"""What happens at a client: `perform(client, message) -> reply`, and the jobs of training and evaluation.

A job that another part asks for is declared there (`trust/testing.py`), not here. See `holdfast/jobs.py`.
"""

from holdfast.client.client import Client, check_open, perform
from holdfast.client.digest import DIGEST, DigestReply, DigestRequest
from holdfast.client.evaluate import EVALUATE, EvaluateReply, EvaluateRequest
from holdfast.client.gradient import GRADIENT, GradientReply, GradientRequest
from holdfast.client.scale import SCALE, ScaleReply, ScaleRequest
from holdfast.client.secure_sum import SECURE_SUM, SumReply, SumRequest
from holdfast.client.secure_train import SECURE_TRAIN, SecureTrainRequest
from holdfast.client.train import TRAIN, TrainReply, TrainRequest, samples_in

__all__ = [
    "DIGEST",
    "EVALUATE",
    "GRADIENT",
    "SCALE",
    "SECURE_SUM",
    "SECURE_TRAIN",
    "TRAIN",
    "Client",
    "DigestReply",
    "DigestRequest",
    "EvaluateReply",
    "EvaluateRequest",
    "GradientReply",
    "GradientRequest",
    "ScaleReply",
    "ScaleRequest",
    "SecureTrainRequest",
    "SumReply",
    "SumRequest",
    "TrainReply",
    "TrainRequest",
    "check_open",
    "perform",
    "samples_in",
]
