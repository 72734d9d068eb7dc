"""The privacy report: what it says of digests, runs and experiments, in JSON, text and HTML."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from release_helpers import ABOUT, experiment, records
from safetensors.torch import save_file
from typer.testing import CliRunner

from holdfast.absence import FedDig
from holdfast.audit.canary_sums import audit_sums
from holdfast.audit.findings import as_json, examine
from holdfast.audit.target import subject_of, subject_of_file
from holdfast.cli.privacy import privacy_app
from holdfast.core.errors import HoldfastError
from holdfast.digests.digest import make_digest, save_digest
from holdfast.digests.mixing import Laplace
from holdfast.digests.release import claim_of, make_release
from holdfast.play import run
from holdfast.privacy import sum_noise
from holdfast.privacy.gate import LEDGER
from holdfast.privacy.noise import gaussian, seeded, system
from holdfast.report.privacy_page import as_html, as_text

KEYS = {
    "mode", "adjacency", "epsilon_nominal", "epsilon_features", "epsilon_labels", "epsilon_total", "delta",
    "membership_auc", "audit_lower_bound", "verdict",
}  # fmt: skip


def written(path: Path, absence: FedDig) -> Path:
    own = records()
    sealed, _ = make_release(absence, ABOUT, own.inputs[0], own.labels, torch.Generator(), system())
    save_file(sealed, path)
    return path


def toml(path: Path, **changes: object) -> Path:
    asked = experiment(**changes).as_json()
    path.write_text(json.dumps({"schema": 1, **asked}))
    return path


def report(path: Path, *more: str) -> dict[str, Any]:
    done = CliRunner().invoke(privacy_app, ["report", str(path), "--json", "--trials", "40", *more])
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (0 if found["verdict"] == "PASS" else 3), done.output
    states = [channel["state"] for channel in found["channels"]]
    if "open" in states:
        assert found["epsilon_total"] == "infinite"
        assert found["verdict"] != "PASS"
    return found


@pytest.mark.parametrize(
    ("absence", "adjacency"),
    [
        (FedDig(mode="moments", epsilon=2.0), "replace one record"),
        (FedDig(mode="dp-full", epsilon=2.0), "replace one record"),
        (FedDig(mode="dp-label-public", epsilon=2.0), "replace one record's features; labels and counts are public"),
        (FedDig(mode="dp-label-public", epsilon=2.0, delta=0.0, clip=0.5), "replace one record's features"),
    ],
)
def test_a_strict_digest_file_is_reported_with_its_true_epsilon(
    absence: FedDig, adjacency: str, tmp_path: Path
) -> None:
    said = report(written(tmp_path / "a.digest", absence))
    assert said.keys() >= KEYS
    assert said["mode"] == absence.mode
    assert said["adjacency"].startswith(adjacency)
    assert said["epsilon_nominal"] == 2.0
    assert 1.9 < said["epsilon_total"] <= 2.0 + 1e-9
    assert (said["delta"], said["verdict"]) == (absence.delta, "PASS")
    assert said["audit_lower_bound"] <= 2.0
    assert said["entropy"] == "operating system's entropy"
    if absence.mode == "dp-label-public":
        assert said["epsilon_labels"] == "infinite"
        assert said["clip"] == pytest.approx(0.5 * 3 if absence.delta == 0 else 1.0)


def test_the_papers_digest_is_told_the_truth_about(tmp_path: Path) -> None:
    own = records()
    noise = Laplace(0.005, 20_000)
    digest = make_digest(own.inputs[0], own.labels, 4, generator=torch.Generator(), noise=noise)
    save_digest(tmp_path / "a.digest", digest)
    said = report(tmp_path / "a.digest")
    assert said["epsilon_nominal"] == 0.005
    assert said["epsilon_features"] == 2 * 9 * 20_000 * 0.005 / 4  # features of either sign
    assert (said["epsilon_total"], said["verdict"]) == ("infinite", "NO GUARANTEE")
    text = as_text(examine(subject_of(tmp_path / "a.digest"), system(), trials=20, see=False))
    assert "Not tried: a digest's file has none of its owner's records" in text
    assert "PASS" not in text  # nothing is claimed that could be refuted
    assert "No epsilon is claimed" in text
    assert said["membership_auc"] > 0.99
    assert said["audit_lower_bound"] > 1.0  # two hundred times the nominal epsilon, and no more trials than 40
    assert said["guessing_index"]["paper_bound_holds"] is True
    assert said["guessing_index"]["worst"] >= said["guessing_index"]["median"]


def test_without_noise_there_is_no_guarantee_and_at_spd_2_the_published_bound_fails(tmp_path: Path) -> None:
    own = records()
    save_digest(tmp_path / "a.digest", make_digest(own.inputs[0], own.labels, 4, spd=2, generator=torch.Generator()))
    said = report(tmp_path / "a.digest")
    assert (said["epsilon_nominal"], said["membership_auc"]) == ("infinite", 1.0)
    assert said["guessing_index"]["paper_bound_holds"] is False


def test_an_experiment_is_attacked_with_its_owners_records_before_it_is_run(tmp_path: Path) -> None:
    path = toml(tmp_path / "e.json")
    page = tmp_path / "page.html"
    said = report(path, "--out", str(page), "--client", "1")
    assert [member["who"] for member in said["membership"]][1].startswith("two of the owner's records")
    for member in said["membership"]:
        low, high = member["auc_limits"]
        assert low - 0.02 <= member["predicted"] <= high + 0.02
    assert len(said["reconstruction"]) == 2
    assert said["guessing_index"] is None
    assert (said["verdict"], said["epsilon_total"], said["epsilon_updates"]) == ("NO GUARANTEE", "infinite", "infinite")
    assert 0 < said["epsilon_protected"] < 10
    states = {channel["name"]: channel["state"] for channel in said["channels"]}
    assert states == {
        "digests": "protected",
        "updates": "open",
        "metrics": "open",
        "notes": "open",
        "errors": "open",
        "working time": "open",
        "number of records": "public",
        "taking part": "public",
    }
    text = page.read_text()
    assert "NO GUARANTEE. Protected: digests, together epsilon" in text
    assert "Not protected: updates, metrics, notes, errors, working time; so epsilon of all that leaves" in text
    assert text.count("<img") == 16
    assert "<script" not in text
    assert "never sent" in text


def test_a_run_shows_what_each_client_has_spent_and_has_left(tmp_path: Path) -> None:
    policy = tmp_path / "mine.toml"
    policy.write_text('max_epsilon = 5.0\ndelta = 1e-5\nmodes = ["moments"]\nprotect_updates = false')
    absence = {"name": "feddig", "mode": "moments", "epsilon": 2.0, "refresh": 1, "policy": str(policy)}
    run(experiment(absence=absence, rounds=2, scenario="none"), tmp_path / "out")
    said = report(tmp_path / "out")
    assert [account["releases"] for account in said["accounts"]] == [2, 2, 2]
    spent = said["accounts"][0]["spent"]
    assert 2.0 < spent < 4.0  # two releases cost less than twice one
    assert said["epsilon_protected"] == pytest.approx(spent)
    assert said["epsilon_release"] == pytest.approx(2.0, abs=1e-3)
    assert said["accounts"][0]["left"] == pytest.approx(5.0 - spent)
    (tmp_path / "out" / "clients" / "0001" / LEDGER).write_text("{}")
    said = report(tmp_path / "out")
    assert said["accounts"][1]["left"] == 0.0
    assert "damaged" in said["accounts"][1]["note"]
    assert (said["epsilon_total"], said["verdict"]) == ("infinite", "NO GUARANTEE")  # nobody knows what client 1 sent
    told = as_text(examine(subject_of(tmp_path / "out"), system(), trials=20, see=False))
    assert "NO GUARANTEE. What was released by client 1 is not known" in told
    assert "epsilon of what is protected, all releases, spent  infinite" in told


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_a_house_whose_ledger_is_damaged_has_no_guarantee(damage: str, tmp_path: Path) -> None:
    from holdfast.digests.release import claim_of
    from holdfast.privacy.ledger import read_policy, spend

    digest = written(tmp_path / "a.digest", FedDig(mode="moments"))
    (tmp_path / "privacy.toml").write_text('max_epsilon = 9.0\ndelta = 1e-5\nmodes = ["moments"]')
    ledger, policy = tmp_path / LEDGER, read_policy(tmp_path / "privacy.toml")
    for _ in range(2):
        spend(policy, ledger, claim_of(FedDig(mode="moments"), (9,), 4), "digest")
    before = report(digest)
    assert (before["verdict"], round(before["epsilon_total"], 2)) == ("PASS", 4.46)
    ledger.write_bytes(ledger.read_bytes()[:100]) if damage == "truncated" else ledger.unlink()
    said = report(digest)
    assert (said["epsilon_total"], said["verdict"]) == ("infinite", "NO GUARANTEE")


def test_an_experiment_with_protected_updates_alone_is_attacked_step_by_step(tmp_path: Path) -> None:
    path = toml(tmp_path / "e.json", absence="none", protect="dp-sgd:epsilon=2", rounds=3, batch_size=64)
    page = tmp_path / "page.html"
    said = report(path, "--out", str(page))
    assert said.keys() >= KEYS
    assert (said["mode"], said["adjacency"], said["verdict"]) == ("dp-sgd", "replace one record", "NO GUARANTEE")
    assert 1.98 < said["epsilon_updates"] <= 2.0
    assert said["epsilon_protected"] == said["epsilon_updates"]
    assert said["epsilon_total"] == "infinite"  # accuracies leave as they are
    assert said["epsilon_release"] < 2.0  # of one round
    assert (said["updates"]["rounds"], said["updates"]["steps"]) == (3, 4)
    assert said["audits"].keys() == {"updates", "ledger"}
    assert 0.55 < said["membership_auc"] < 0.75  # at epsilon 2 the best test is right a little more often than not
    assert {c["name"] for c in said["channels"] if c["state"] == "open"} == {
        "metrics",
        "notes",
        "errors",
        "working time",
    }
    text = page.read_text()
    assert "What updates promise" in text
    assert "What a digest promises" not in text


def test_digests_and_protected_updates_are_added_up(tmp_path: Path) -> None:
    absence = {"name": "feddig", "mode": "moments", "epsilon": 2.0, "refresh": 2}
    path = toml(tmp_path / "e.json", absence=absence, protect="dp-sgd:epsilon=2", rounds=3, batch_size=64)
    planned = as_json(examine(subject_of(path), system(), trials=20, see=False))
    assert 2.8 < planned["epsilon_protected"] < 6.0  # two digests of epsilon 2 and updates of 2
    assert set(planned["audits"]) == {"digest", "updates", "ledger"}
    run(
        experiment(absence=absence, protect="dp-sgd:epsilon=2", rounds=3, batch_size=64, scenario="none"),
        tmp_path / "out",
    )
    spent = as_json(examine(subject_of(tmp_path / "out"), system(), trials=20, see=False))
    assert [account["releases"] for account in spent["accounts"]] == [5, 5, 5]
    assert spent["epsilon_protected"] == pytest.approx(planned["epsilon_protected"], rel=0.02)
    assert spent["accounts"][0]["updates"] == pytest.approx(2.0, rel=0.02)


def test_an_honest_release_is_never_failed() -> None:
    """Each attack is held to its own claim at 99 %, with room: of 20 reports on honest releases none may fail."""
    from holdfast.audit.canary import tell_apart, worst_pair
    from holdfast.digests.release import claim_of

    for options in (FedDig(mode="moments"), FedDig(mode="dp-full")):
        claim, pair = claim_of(options, (4,), 3), worst_pair(options.mode, 4)
        for seed in range(10):
            source = seeded(1000 + seed)
            assert not tell_apart(options, claim, pair, 3, 1000, source, "worst").better_than_predicted


def test_text_and_page_say_the_same() -> None:
    from holdfast.audit.target import Subject
    from holdfast.digests.release import claim_of

    options = FedDig(mode="moments")
    subject = Subject("a <digest>", "digest", options, claim_of(options, (9,), 4), (9,), 4)
    findings = examine(subject, seeded(0), trials=40)
    assert as_json(findings)["verdict"] == "NO GUARANTEE"  # the attacks' noise was seeded
    text, page = as_text(findings), as_html(findings)
    for word in ("replace one record", "Not covered", "tests others", "entropy", "no guarantee (seeded for tests)"):
        assert word in text
        assert word in page
    assert "a &lt;digest&gt;" in page
    assert max(map(len, text.splitlines())) < 300


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "nothing", "does not exist"),
        (lambda path: path, "is not a run"),
    ],
)
def test_what_cannot_be_reported_is_a_sentence(make: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=words):
        subject_of(make(tmp_path))


def test_plain_fedavg_has_a_report_too(tmp_path: Path) -> None:
    path = toml(tmp_path / "e.json", absence="none")
    found = report(path)
    assert found["verdict"] == "NO GUARANTEE"
    assert found["epsilon_total"] == "infinite"
    states = {channel["name"]: channel["state"] for channel in found["channels"]}
    assert {"updates", "training loss", "metrics"} <= {name for name, state in states.items() if state == "open"}
    text = as_text(examine(subject_of(path), system(), trials=40))
    assert "In plain words" in text
    assert "records have been reconstructed" in text
    changed = report(path, "--set", "absence=feddig:mode=moments,epsilon=1", "--set", "model=features")
    assert changed["epsilon_protected"] == pytest.approx(1, abs=1e-3)


def test_one_epsilon_for_a_record_is_another_for_a_person(tmp_path: Path) -> None:
    found = report(written(tmp_path / "a.digest", FedDig(mode="moments", epsilon=3.0)))
    assert found["epsilon_person_with_5_records"] == pytest.approx(21.1, abs=0.2)


def test_a_damaged_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="there is no such file"):
        subject_of_file(tmp_path / "nowhere")
    path = written(tmp_path / "a.digest", FedDig(mode="moments"))
    path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    with pytest.raises(HoldfastError, match="SHA-256"):
        subject_of(path)
    path.write_bytes(b"nothing")
    with pytest.raises(HoldfastError, match="damaged or no digest at all"):
        subject_of(path)


def test_a_client_that_is_not_there_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(privacy_app, ["report", str(toml(tmp_path / "e.json")), "--client", "7"])
    assert isinstance(done.exception, HoldfastError)
    assert "clients 0 to 2, not 7" in str(done.exception)


def test_a_claim_is_recomputed_not_believed(tmp_path: Path) -> None:
    own = records()
    absence = FedDig(mode="dp-label-public", epsilon=2.0)
    sealed, claim = make_release(absence, ABOUT, own.inputs[0], own.labels, torch.Generator(), system())
    better = json.dumps({**claim.as_json(), "epsilon_total": 0.001, "epsilon_features": 0.001})
    save_file({**sealed, "claim": torch.frombuffer(bytearray(better.encode()), dtype=torch.uint8)}, tmp_path / "a")
    assert subject_of(tmp_path / "a").claim.epsilon_total == pytest.approx(2.0, abs=0.01)
    bad = torch.frombuffer(bytearray(b"{}"), dtype=torch.uint8)
    save_file({**sealed, "claim": bad}, tmp_path / "b")
    with pytest.raises(HoldfastError):
        subject_of(tmp_path / "b")


@pytest.mark.parametrize(
    ("kind", "classes", "labels"),
    [("regression", 0, [[0.5]]), ("hazards:1,2", 0, [[1.5, 1.0]]), ("classes", 3, [2])],
)
def test_sums_of_every_kind_have_a_report(kind: str, classes: int, labels: list[Any], tmp_path: Path) -> None:
    """Exact sums promise nothing; with noise the attack does as well as predicted, and no better."""
    about = replace(ABOUT, kind=kind, classes=classes)
    features = torch.nn.functional.normalize(torch.randn(60, *ABOUT.feature_shape, generator=torch.Generator()), dim=1)
    for options in (FedDig(mode="sums"), FedDig(mode="moments", epsilon=3.0, target_range=(0.0, 1.0))):
        if (exact := options.mode == "sums") is False and kind == "classes":
            continue  # moments of classes: above
        path = tmp_path / f"{options.mode}.digest"
        told = torch.tensor(labels * 60)
        save_file(make_release(options, about, features, told, torch.Generator(), system())[0], path)
        found = report(path)
        assert found["membership_auc"] == 1.0 if exact else 0.5 < found["membership_auc"] < 0.8
        assert found["epsilon_total"] == "infinite" if exact else found["epsilon_total"] <= 3.0
        assert found["verdict"] == ("NO GUARANTEE" if exact else "PASS")
        assert set(found["audits"]) == (set() if exact else {"digest", "ledger"})


def test_sums_with_a_quarter_of_the_noise_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    options = FedDig(mode="moments", epsilon=3.0, target_range=(0.0, 1.0))
    claim = claim_of(options, (4,), 0, kind="regression")
    assert audit_sums(options, claim, "regression", 0, 400, seeded(1)).passed

    def quiet(exact: Any, scale: Any, source: Any) -> Any:
        return exact + gaussian(exact.size, scale / 4, source).reshape(exact.shape)

    monkeypatch.setattr(sum_noise, "noised", quiet)
    assert not audit_sums(options, claim, "regression", 0, 400, seeded(1)).passed
