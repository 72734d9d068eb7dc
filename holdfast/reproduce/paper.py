"""The numbers the FedDig paper prints (Hsu et al.): Table I, Table II, and those in its text; EMNIST, in percent.

What it shows in bars only (most of Figures 7, 8 and 12) has no number here: none is read off a picture.
"""

from __future__ import annotations

from collections.abc import Mapping

Numbers = Mapping[tuple[str, str], float]  # (row, column) -> the printed number

SCENARIOS = ("none", "temporary", "forever", "sequential", "group")
_TABLE_1 = {
    "FedAvg": (84.6, 83.0, 77.5, 51.6, 68.3),
    "FedProx": (84.6, 82.7, 77.5, 51.8, 68.6),
    "FedNova": (85.0, 83.8, 77.7, 53.0, 68.4),
    "FedDyn": (5.0, 5.0, 5.0, 5.0, 5.0),
    "AdaBest": (83.5, 82.7, 76.6, 47.0, 68.1),
    "FedDig": (83.5, 83.2, 81.0, 77.6, 75.3),
}
TABLE_1: Numbers = {
    **{(row, column): n for row, ns in _TABLE_1.items() for column, n in zip(SCENARIOS, ns, strict=True)},
    ("FedProx + FedDig", "sequential"): 77.2,  # text, "Backbone FL algorithms"
    ("FedNova + FedDig", "sequential"): 80.0,
    ("centralised", "none"): 87.0,  # text, Section V.A
}

SIZE, DIGESTS, BYTES, SECONDS = "MB, client and round", "MB of digests, once", "bytes a digest", "seconds a round"
TABLE_2: Numbers = {
    ("FedAvg", SIZE): 4.77,
    ("FedProx", SIZE): 4.77,
    ("FedNova", SIZE): 4.77,
    ("FedDig", SIZE): 5.77,
    ("FedDig", DIGESTS): 177.54,
    ("FedDig", BYTES): 1272.0,  # 177.54 MB for 139,586 digests
    ("FedAvg", SECONDS): 24.0,
    ("FedProx", SECONDS): 26.5,
    ("FedNova", SECONDS): 24.3,
    ("FedDig", SECONDS): 44.9,
}

# Figure 7a's first group and Figure 8's "SpD 4" are the sequential leaving of Table I.
FIGURE_7A: Numbers = {
    (row, "Dirichlet 0.1"): TABLE_1[row, "sequential"] for row in ("FedAvg", "FedProx", "FedNova", "FedDig")
}
FIGURE_7B: Numbers = {
    ("FedDig, none", "4 clients"): TABLE_1["FedDig", "none"],
    ("FedDig, sequential", "4 clients"): TABLE_1["FedDig", "sequential"],
}
FIGURE_8: Numbers = {("FedDig", column): TABLE_1["FedDig", "sequential"] for column in ("SpD 4", "mixing and noise")}
FIGURE_12: Numbers = {}
