"""`holdfast digest make` and `show`: a client's own file in, a digest and the truth about it out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from digest_helpers import own_file, recipe, told
from typer.testing import CliRunner

from holdfast.audit.findings import as_json, examine
from holdfast.audit.target import subject_of
from holdfast.cli.digest_making import make
from holdfast.cli.digesting import digest_app
from holdfast.core.errors import HoldfastError
from holdfast.digests.digest import load_digest
from holdfast.encoders import make_encoder
from holdfast.privacy.ledger import read_ledger
from holdfast.privacy.noise import system


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return own_file(tmp_path)


def test_a_digest_of_a_clients_own_file(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "digest.safetensors"
    assert make(recipe(own), out) == out.stat().st_size
    encoder = make_encoder("autoencoder", (1, 28, 28))
    digest = load_digest(out, task="fashion-mini", encoder=encoder.fingerprint, classes=10, feature_shape=(4, 8, 8))
    used = 4 * sum(int(count) // 4 for count in np.bincount(np.load(own)["y"]))
    assert (len(digest), digest.samples, digest.used, digest.dropped) == (used // 4, 50, used, 50 - used)
    assert set(digest.labels.sum(0).nonzero().flatten().tolist()) == {3, 7}
    # SpD 1 is no mixing at all: the very features, in another order.
    make(recipe(own, spd=1), tmp_path / "one")
    images = torch.from_numpy(np.load(own)["x"])[:, None]
    plain = sorted(row.tolist() for row in encoder.encode(images).flatten(1))
    assert sorted(row.tolist() for row in load_digest(tmp_path / "one").features.flatten(1)) == plain


def test_the_order_of_mixing_differs_from_call_to_call(own: Path, tmp_path: Path) -> None:
    make(recipe(own), tmp_path / "a")
    make(recipe(own), tmp_path / "b")
    assert not torch.equal(load_digest(tmp_path / "a").features, load_digest(tmp_path / "b").features)


def test_all_options_reach_the_digest(own: Path, tmp_path: Path) -> None:
    changes = {"spd": 2, "strategy": "within", "weights": "0.75/0.25", "remainder": "mix", "epsilon": 0.01, "bits": "8"}
    make(recipe(own, **changes), tmp_path / "d")
    digest = load_digest(tmp_path / "d")
    assert (digest.spd, digest.strategy, digest.weights, digest.dropped) == (2, "within", "0.75/0.25", 0)
    assert digest.noise == "laplace:epsilon=0.01,samples=20000 (nominal)"
    facts = told(tmp_path / "d")
    assert facts["features_as"] == "int8, compressed"
    assert facts["mode"] == "mixing and noise"
    assert sum(facts["class_shares"]) == pytest.approx(1.0)
    assert facts["bytes_per_digest"] == (tmp_path / "d").stat().st_size / len(digest)


def test_what_it_reveals_is_said_without_comfort(own: Path, tmp_path: Path) -> None:
    make(recipe(own, spd=1), tmp_path / "open")
    text = " ".join(told(tmp_path / "open")["reveals"])
    assert "every single sample" in text
    assert "no differential privacy" in text
    make(recipe(own, epsilon=0.005), tmp_path / "paper")
    text = " ".join(told(tmp_path / "paper")["reveals"])
    assert "10^-2349" in text  # the published setting: 256 elements, SpD 4
    assert "cost 6400" in text
    assert "infinite" in text


def test_the_commands(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "d.safetensors"
    run = CliRunner().invoke(digest_app, ["make", "--samples-of", str(own), "--strategy", "across", "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert "48 of 50" in run.output
    shown = CliRunner().invoke(digest_app, ["show", str(out), "--json"])
    facts = json.loads(shown.output)
    assert facts["digests"] == 12
    assert facts["spd"] == 4
    assert facts["mode"] == "only mixing"
    assert facts["adjacency"] == "replace one record"
    assert facts["guessing_index"]["median"] <= facts["guessing_index"]["worst"] < 0
    assert "the published bound" in " ".join(run.output.split())
    assert len(facts["reveals"]) >= 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"bits": "7"}, "digest bits: '7' is not known; say 32, 16, 8, 6, 4"),
        ({"weights": "most"}, "'most' is not known"),
        ({"weights": "0.5/0.6/0/0"}, "sum to one"),
        ({"spd": 51}, "51 samples per digest are more than the client's 50"),
        ({"spd": 0}, "at least 1 sample"),
        ({"strategy": "along"}, "'across' or 'within'"),
        ({"epsilon": -1.0}, "must be positive"),
        ({"epsilon": float("inf")}, "leave epsilon out for no noise"),
        ({"encoder": "scatering"}, "did you mean 'scattering'"),
        ({"task": "fashion-mny"}, "did you mean"),
        ({"samples_of": Path("nowhere.npz")}, "does not exist"),
    ],
)
def test_bad_wishes_are_refused_and_nothing_is_written(
    own: Path, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(HoldfastError) as error:
        make(recipe(own, **changes), tmp_path / "out")
    assert sentence in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.zeros((4, 28, 28), np.uint8), "y": np.array([0, 1, 2, 10])}, "labels must lie in 0..9"),
        ({"x": np.zeros((4, 28, 28), np.uint8), "y": np.zeros(3, int)}, "3 labels for 4 samples"),
        ({"x": np.full((4, 28, 28), np.nan), "y": np.zeros(4, int)}, "NaN"),
        ({"x": np.zeros((4, 28, 28), np.uint8), "z": np.zeros(4, int)}, "it holds x, z"),
        ({"x": np.zeros((4, 9), np.float32), "y": np.zeros(4, int)}, "shape (9,)"),
        ({"x": np.array([{}] * 4), "y": np.zeros(4, int)}, "plain numbers"),
    ],
)
def test_bad_samples_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], sentence: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(HoldfastError) as error:
        make(recipe(tmp_path / "bad.npz"), tmp_path / "out")
    assert sentence in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_published_size_is_that_of_these_features_and_classes(own: Path, tmp_path: Path) -> None:
    make(recipe(own), tmp_path / "maps")
    assert told(tmp_path / "maps")["bytes_published"] == 4 * (256 + 10)
    make(recipe(own, encoder="scattering:16"), tmp_path / "few")
    assert told(tmp_path / "few")["bytes_published"] == 4 * (16 + 10)


@pytest.mark.parametrize("mode", ["moments", "dp-full", "dp-label-public"])
def test_a_digest_with_a_promise(mode: str, own: Path, tmp_path: Path) -> None:
    policy = tmp_path / "house" / "mine.toml"
    policy.parent.mkdir()
    policy.write_text(f'max_epsilon = 2.5\ndelta = 1e-5\nmodes = ["{mode}"]\n')
    out = tmp_path / "d.safetensors"
    asked = ["make", "--samples-of", str(own), "--mode", mode, "--epsilon", "2", "--policy", str(policy)]
    run = CliRunner().invoke(digest_app, [*asked, "--out", str(out), "--json"])
    assert run.exit_code == 0, run.output
    facts = json.loads(run.stdout)
    assert (facts["mode"], facts["task"], facts["bytes"]) == (mode, "fashion-mini", out.stat().st_size)
    assert facts["guarantee"].startswith("(2, 1e-05)-differential privacy: replace one record")
    assert facts["adjacency"] in facts["reveals"][0]
    [entry] = read_ledger(policy.parent / "privacy-ledger.json").entries
    assert (entry.claim.mode, entry.what) == (mode, "digest of fashion-mini, file d.safetensors")
    said = as_json(examine(subject_of(out, policy=policy), system(), trials=20))
    [account] = said["accounts"]
    assert (account["client"], account["releases"]) == (None, 1)
    assert account["left"] == pytest.approx(2.5 - account["spent"])
    shown = CliRunner().invoke(digest_app, ["show", str(out)])
    assert "differential privacy" in " ".join(shown.output.split())
    again = CliRunner().invoke(digest_app, [*asked, "--out", str(tmp_path / "e.safetensors")])
    assert "above max_epsilon = 2.5" in str(again.exception)
    assert not (tmp_path / "e.safetensors").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mode": "moment"}, "did you mean 'moments'"),
        ({"mode": "moments", "spd": 8}, "--spd: mode 'moments' has no use for it; leave it out"),
        ({"mode": "moments", "strategy": "across"}, "--strategy: mode 'moments' has no use for it"),
        ({"mode": "moments", "bits": "4"}, "--bits: mode 'moments' has no use for it"),
        ({"mode": "moments", "weights": "random"}, "--weights: mode 'moments' has no use for it"),
        ({"mode": "dp-full", "remainder": "mix"}, "--remainder: mode 'dp-full' has no use for it"),
        ({"mode": "paper", "delta": 1e-6}, "--delta: mode 'paper' has no use for it"),
        ({"mode": "moments", "delta": 0.0}, "for mode 'moments' above 0"),
        ({"mode": "dp-full", "weights": "random"}, "mixes with equal weights"),
        ({"mode": "moments", "epsilon": 1e-9}, "ask for a larger epsilon"),
        ({"mode": "dp-full", "epsilon": 1e10}, "ask for a smaller epsilon"),
        ({"mode": "moments", "encoder": "autoencoder"}, "needs features within a public norm bound"),
    ],
)
def test_a_promise_that_cannot_be_kept_is_refused(
    changes: dict[str, object], sentence: str, own: Path, tmp_path: Path
) -> None:
    with pytest.raises(HoldfastError) as error:
        make(recipe(own, **{"encoder": "scattering", **changes}), tmp_path / "out")
    assert sentence in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_digest_is_never_overwritten_and_a_stranger_never_shown(own: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"precious")
    with pytest.raises(HoldfastError, match="exists; remove it"):
        make(recipe(own), tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == b"precious"
    with pytest.raises(HoldfastError, match="no digest at all"):
        load_digest(tmp_path / "there")
