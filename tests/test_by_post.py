"""A federation by post: digests in, a model out, and what does not fit is one sentence."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from holdfast.by_post import Outcome, model_bytes, train
from holdfast.cli.digest_making import Recipe, Sender, make
from holdfast.cli.digesting import digest_app
from holdfast.core.errors import HoldfastError
from holdfast.core.files import load_tensors
from holdfast.data.named import load_task
from holdfast.digests.origin import known_keys, make_key
from holdfast.runs.export import load_model

CLASSES = (0, 1, 7)


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sites' signed digests, the last of which calls class 0 class 7 and the other way round."""
    folder = tmp_path_factory.mktemp("post")
    task = load_task("fashion-mini")
    index = sum(task.train.labels == c for c in CLASSES).nonzero().flatten()[:800]
    for place, part in enumerate(index.split(200)):
        x, y = task.train.inputs[0][part][:, 0].numpy(), task.train.labels[part].numpy()
        if place == 3:
            y = np.where(y == 0, 7, np.where(y == 7, 0, y))
        np.savez_compressed(folder / f"s{place}.npz", x=x, y=y)
        secret, _ = make_key(folder / "keys", f"s{place}")
        recipe = Recipe("fashion-mini", samples_of=folder / f"s{place}.npz")
        make(recipe, folder / f"s{place}.digest", sender=Sender(f"s{place}", secret, 30))
    return folder


def files(post: Path, *places: int) -> list[Path]:
    return [post / f"s{place}.digest" for place in places]


def weights(outcome: Outcome) -> bytes:
    return model_bytes(outcome)


def test_three_sites_and_one_model(post: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    args = ["train", *map(str, files(post, 0, 1, 2)), "--out", str(out), "--keys", str(post / "keys"), "--json"]
    told = json.loads(CliRunner().invoke(digest_app, args, catch_exceptions=False).stdout)
    assert [one["site"] for one in told["digests"]] == ["s0", "s1", "s2"]
    assert all(one["signature"] == "signed by the site" for one in told["digests"])
    assert told["expected"] > 0.9
    assert told["at_most"] is None
    assert told["disagreements"] == []
    assert {path.name for path in out.iterdir()} >= {"model.safetensors", "report.html", "privacy.html", "report.json"}
    assert " points), from " in (out / "report.html").read_text()  # how much of it may be chance
    page = (out / "privacy.html").read_text()
    assert "no differential privacy" in page
    assert "<script" not in page
    task = load_task("fashion-mini")
    kept = sum(task.test.labels == c for c in CLASSES).nonzero().flatten()
    model = load_model(out)
    answers = model.predict(task.test.inputs[0][kept][:, 0].numpy()).argmax(1)
    assert (answers == task.test.labels[kept].numpy()).mean() > 0.9
    assert model.class_names[7] == "Sneaker"


def test_withdrawal_is_exact(post: Path) -> None:
    """Without a digest the model is the same, to the bit, as if it had never been there."""
    before = weights(train(files(post, 0, 1), head="lda"))
    train(files(post, 0, 1, 2), head="lda")
    assert weights(train(files(post, 0, 1), head="lda")) == before
    assert weights(train(files(post, 0, 1, 2), head="lda")) != before


def test_who_contradicts_whom(post: Path) -> None:
    outcome = train(files(post, 0, 1, 2, 3), head="lda")
    assert set(outcome.contradicted) == {"s3"}
    assert {(one, other) for one, other, _ in outcome.disagreements} >= {("s3", "s0"), ("s0", "s3"), ("s3", "s2")}
    assert not any({one, other} <= {"s0", "s1", "s2"} for one, other, _ in outcome.disagreements)
    adds = outcome.fitted.adds
    assert adds[3] is not None
    assert adds[3] < min(add for add in adds[:3] if add is not None)


def test_what_does_not_fit_together_is_one_sentence(post: Path, tmp_path: Path) -> None:
    own = post / "s0.npz"
    make(Recipe("fashion-mini", samples_of=own, encoder="scattering:64"), tmp_path / "other.digest")
    make(Recipe("fashion-mini", samples_of=own, mode="moments", epsilon=10.0), tmp_path / "moments.digest")
    one = files(post, 1)
    with pytest.raises(HoldfastError, match="encoder of one is 'scattering:64'"):
        train([*one, tmp_path / "other.digest"])
    with pytest.raises(HoldfastError, match="mode of one is 'moments'"):
        train([*one, tmp_path / "moments.digest"])
    with pytest.raises(HoldfastError, match="would count twice"):
        train([*one, *one])
    with pytest.raises(HoldfastError, match="no such file"):
        train([tmp_path / "none.digest"])
    with pytest.raises(HoldfastError, match="at least one"):
        train([])


def test_expired_unsigned_and_strangers_digests_are_refused(post: Path, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"expired on .*; ask s0"):
        train(files(post, 0), today=date.today() + timedelta(days=31))
    keys = known_keys(post / "keys")
    make(Recipe("fashion-mini", samples_of=post / "s0.npz"), tmp_path / "s1.digest")
    with pytest.raises(HoldfastError, match="not signed by the one that is known of"):
        train([tmp_path / "s1.digest"], known=keys)
    secret, _ = make_key(tmp_path, "s1")
    make(Recipe("fashion-mini", samples_of=post / "s0.npz"), tmp_path / "forged", sender=Sender("s1", secret))
    with pytest.raises(HoldfastError, match="by another key"):
        train([tmp_path / "forged"], known=keys)
    outcome = train([tmp_path / "forged"], head="lda")
    assert outcome.posts[0].signature == "signed, by a key that nobody vouches for"


def test_nobody_counts_for_more_than_twice_the_median(post: Path, tmp_path: Path) -> None:
    task = load_task("fashion-mini")
    index = sum(task.train.labels == c for c in CLASSES).nonzero().flatten()
    x, y = task.train.inputs[0][index][:, 0].numpy(), task.train.labels[index].numpy()
    np.savez_compressed(tmp_path / "all.npz", x=x, y=y)
    make(Recipe("fashion-mini", samples_of=tmp_path / "all.npz"), tmp_path / "all.digest")
    outcome = train([*files(post, 0, 1), tmp_path / "all.digest"], head="lda")
    usual = sorted(post.records for post in outcome.posts)[1]
    assert outcome.counted[2] == 2 * usual < outcome.posts[2].records


def test_moments_by_post(post: Path, tmp_path: Path) -> None:
    paths = []
    for place in range(3):
        paths.append(tmp_path / f"m{place}.digest")
        make(Recipe("fashion-mini", samples_of=post / f"s{place}.npz", mode="moments", epsilon=20.0), paths[-1])
    outcome = train(paths)
    assert outcome.fitted.name == "lda"
    assert 0.5 < outcome.fitted.expected < (outcome.fitted.at_most or 0.0) <= 1.0
    (tmp_path / "model.safetensors").write_bytes(model_bytes(outcome))
    task = load_task("fashion-mini")
    kept = sum(task.test.labels == c for c in CLASSES).nonzero().flatten()
    answers = load_model(tmp_path / "model.safetensors").predict(task.test.inputs[0][kept][:, 0].numpy()).argmax(1)
    assert (answers == task.test.labels[kept].numpy()).mean() > 0.85
    assert torch.is_tensor(load_tensors(model_bytes(outcome))["weight"])


def test_a_regression_by_post_is_pooled_ridge(tmp_path: Path) -> None:
    """Own task and own encoder: five sites' sums, and the R2 of ridge regression on all records together."""
    from sklearn.datasets import load_diabetes
    from sklearn.metrics import r2_score

    from holdfast.heads.from_sums import added, least_squares

    x, y = load_diabetes(return_X_y=True)
    schema = "\n".join(
        ['name = "diabetes"', 'version = "1"', "[target]", 'kind = "regression"', 'column = "y"', "range = [0, 400]"]
        + [f'[columns.x{i}]\nkind = "number"\nrange = [-0.2, 0.2]' for i in range(x.shape[1])]
    )
    (tmp_path / "schema.toml").write_text(schema)
    header = ",".join([*(f"x{i}" for i in range(x.shape[1])), "y"])
    paths = []
    for site in range(5):
        rows = np.c_[x, y][site::5]
        np.savetxt(tmp_path / f"{site}.csv", rows, delimiter=",", header=header, comments="", fmt="%.10g")
        recipe = Recipe(str(tmp_path / "schema.toml"), tmp_path / f"{site}.csv", encoder="table", mode="sums")
        paths.append(tmp_path / f"{site}.digest")
        make(recipe, paths[-1])
    outcome = train(paths, schema=tmp_path / "schema.toml")
    assert (outcome.fitted.name, outcome.fitted.measure) == ("least-squares", "R2")
    assert 0.3 < outcome.fitted.expected < 0.6
    assert all(adds is not None for adds in outcome.fitted.adds)
    (tmp_path / "model.safetensors").write_bytes(model_bytes(outcome))
    tasks = [load_task(str(tmp_path / "schema.toml"), tmp_path / f"{site}.csv") for site in range(5)]
    encoded = np.concatenate([task.train.inputs[0].numpy() for task in tasks])
    targets = np.concatenate([task.train.labels.numpy()[:, 0] for task in tasks])
    answers = load_model(tmp_path / "model.safetensors").predict(encoded)[:, 0]
    slope, intercept, _ = least_squares(added([post.digest for post in outcome.posts]))  # type: ignore[misc]
    assert outcome.schema is not None
    theirs = encoded / outcome.schema.longest @ slope + intercept
    assert r2_score(targets, answers) == pytest.approx(r2_score(targets, theirs), abs=1e-6)
    with pytest.raises(HoldfastError, match="target_range"):
        make(Recipe(str(tmp_path / "schema.toml"), tmp_path / "0.csv", encoder="table", mode="moments"), tmp_path / "m")
    with pytest.raises(HoldfastError, match="mixes records of classes"):
        make(Recipe(str(tmp_path / "schema.toml"), tmp_path / "0.csv", encoder="table"), tmp_path / "p")
    with pytest.raises(HoldfastError, match="say 'auto'"):
        train(paths, head="lda", schema=tmp_path / "schema.toml")


def test_tables_of_classes_give_a_model_that_reads_tables(tmp_path: Path) -> None:
    """Every column lies in the lower half of its range, so all features are below nothing: no obstacle to anything."""
    from holdfast.cli.digest_facts import show

    schema = tmp_path / "schema.toml"
    schema.write_text(
        'name = "two"\nversion = "1"\n[target]\nkind = "classes"\ncolumn = "ill"\n'
        'values = {"no" = "no", "yes" = "yes"}\n'
        '[columns.a]\nkind = "number"\nrange = [0, 9]\n[columns.b]\nkind = "number"\nrange = [0, 9]\n'
    )
    generator = np.random.default_rng(0)
    paths = []
    for site in range(2):
        rows = [f"{a:.3f},{b:.3f},{('no', 'yes')[int(a > b)]}" for a, b in generator.uniform(0, 4, (200, 2))]
        (tmp_path / f"{site}.csv").write_text("\n".join(["a,b,ill", *rows]))
        paths.append(tmp_path / f"{site}.digest")
        make(Recipe(str(schema), tmp_path / f"{site}.csv", encoder="table"), paths[-1])
        show(paths[-1], False)
    outcome = train(paths, schema=schema)
    (tmp_path / "model.safetensors").write_bytes(model_bytes(outcome))
    model = load_model(tmp_path / "model.safetensors")
    new = model.read(tmp_path / "0.csv")
    assert (model.predict(new.x).argmax(1) == np.asarray(new.labels)).mean() > 0.9
    with pytest.raises(HoldfastError, match="give its --schema as well"):
        train(paths)


def test_files_that_would_not_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="none of yours would be in the digest"):
        make(Recipe("fashion-mini", data=tmp_path), tmp_path / "a.digest")
