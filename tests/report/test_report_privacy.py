"""What a report says of digests: what they are, what is promised about them, what guidance makes of them."""

from __future__ import annotations

import base64
import dataclasses
import io
import re
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from release_helpers import experiment
from report_helpers import judged, make_run

from holdfast.core.files import save_tensors
from holdfast.digests.digest import make_digest, seal_digest
from holdfast.play import run
from holdfast.privacy.calibration import gaussian_epsilon, gaussian_ratio
from holdfast.privacy.gate import LEDGER
from holdfast.report.privacy import UPDATES, privacy_words
from holdfast.report.run_data import read_story
from holdfast.runs.experiment import from_table


def test_digests_tell_what_they_are(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [judged(1, 0.5)])
    (run / "digests").mkdir()
    digest = make_digest(torch.rand(9, 4), torch.arange(9) % 3, 3, generator=torch.Generator(), spd=2)
    for name in ("0001-000001", "0001-000005"):
        (run / "digests" / f"{name}.safetensors").write_bytes(save_tensors(seal_digest(digest), {}))
    (run / "digests" / "0000-000001.safetensors").write_bytes(b"torn")
    torn, whole = read_story(run).digests
    assert torn["mode"] == "damaged"
    assert (whole["client"], whole["round"], whole["digests"], whole["samples"], whole["spd"]) == (1, 5, 4, 9, 2)
    assert whole["mode"] == "only mixing"


def test_the_privacy_box_tells_the_truth(tmp_path: Path) -> None:
    story = read_story(
        make_run(tmp_path / "a", [judged(1, 0.5)], absence={"name": "feddig", "epsilon": 0.005}, encoder="autoencoder")
    )
    assert privacy_words(story)[0] == UPDATES
    assert "over all that left epsilon is infinite" in privacy_words(story)[-1]
    noisy = {"client": 1, "mode": "mixing and noise", "spd": 4, "feature_shape": [8, 8, 4], "releases": 1}
    words = privacy_words(dataclasses.replace(story, digests=[noisy]))
    assert words[:2] == [UPDATES, "Each digest: no guarantee: epsilon is infinite (nominal 0.005)."]
    assert "the features alone would cost 6400" in words[2]  # l S epsilon / SpD = 256 x 20,000 x 0.005 / 4
    again = privacy_words(dataclasses.replace(story, digests=[{**noisy, "releases": 3}]))
    assert again[-3:-1] == [
        "Adjacency: replace one record.",
        "Up to 3 digests of one client were released; together they cost epsilon infinite at delta 0.",
    ]


def test_the_privacy_box_of_moments(tmp_path: Path) -> None:
    keys = {"absence": {"name": "feddig", "mode": "moments", "epsilon": 3.0}}
    story = read_story(make_run(tmp_path / "a", [judged(1, 0.5)], **keys))
    moments = {"client": 0, "mode": "moments and noise", "feature_shape": [64], "releases": 1}
    words = privacy_words(dataclasses.replace(story, digests=[moments]))
    assert re.match(r"Each digest: \(3, 1e-05\)-differential privacy: replace one record", words[1])
    again = privacy_words(dataclasses.replace(story, digests=[{**moments, "releases": 4}]))
    total = gaussian_epsilon(2 * gaussian_ratio(3.0, 1e-5), 1e-5)  # four Gaussians are one of twice the ratio
    assert f"together they cost epsilon {total:.4g} at delta" in again[-2]


def test_the_privacy_box_of_protected_updates(tmp_path: Path) -> None:
    keys = {"absence": {"name": "feddig", "mode": "moments"}, "protect": "dp-sgd:epsilon=2", "rounds": 2}
    history = run(experiment(**keys, scenario="none", batch_size=64), tmp_path / "run")
    assert history.folder is not None
    words = privacy_words(read_story(history.folder))
    assert "over all 2 planned rounds are (2, 1e-05)-differentially private: replace one record" in words[0]
    assert re.search(r"client 0 has released most: 3 times, for epsilon [34]\.\d+ at delta 1e-05", words[-2])
    (history.folder / "clients" / "0001" / LEDGER).write_text("{}")
    assert "What client 1 has spent cannot be told" in privacy_words(read_story(history.folder))[-2]


def test_guidance_pictures_of_a_real_run(tmp_path: Path) -> None:
    keys = {"model": "full", "absence": "feddig", "rounds": 1, "clients": 2, "workers": 0, "partition": "iid"}
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 255, (60, 8, 8), dtype=np.uint8), np.arange(60) % 2
    np.savez(tmp_path / "own.npz", x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    history = run(from_table({**keys, "task": str(tmp_path / "own.npz")}), tmp_path / "run")
    assert history.folder is not None
    pictures = read_story(history.folder).guidance
    assert {one["words"].split(",")[0] for one in pictures} == {"client 0", "client 1"}
    head, _, data = pictures[0]["source"].partition(",")
    assert head == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (8, 8)
    checkpoint = max((history.folder / "checkpoints").iterdir())
    checkpoint.write_bytes(checkpoint.read_bytes()[:-5])
    (told,) = read_story(history.folder).guidance
    assert (told["source"], told["words"][:21]) == ("", "They cannot be shown:")
