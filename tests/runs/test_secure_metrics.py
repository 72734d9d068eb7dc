"""Metrics by secure sum: the members' total to the bit, or with noise once for all; nobody's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast
from holdfast import Experiment
from holdfast.client import EVALUATE, EvaluateRequest
from holdfast.client.evaluate import sums_at
from holdfast.client.secure_metrics import metrics_vector, told_of
from holdfast.client.secure_sum import JOIN, METRICS, SECURE_SUM, SumRequest
from holdfast.core.failures import Refusal
from holdfast.data.class_metrics import BalancedAccuracy
from holdfast.data.metrics import Accuracy
from holdfast.engines.inline import Inline
from holdfast.one_total import learn_metrics
from holdfast.privacy import total_counts
from holdfast.privacy.counts import FINE
from holdfast.privacy.ledger import read_ledger
from holdfast.privacy.noise import seeded
from holdfast.privacy.total_counts import Wanted
from holdfast.runs.build import make_plan
from holdfast.secure_exchange import Exchange
from holdfast.trust.measures import held_out

ROUNDS: dict[str, Any] = {"task": "engine_helpers:tiny", "model": "mlp:8", "samples": None, "partition": "iid",
                          "clients": 5, "workers": 0, "rounds": 3, "protect": "secure-sum"}  # fmt: skip


def federation(folder: Path | None = None, policies: dict[int, str] | None = None) -> tuple[Any, dict[int, Any]]:
    plan = make_plan(Experiment(**ROUNDS))
    for client, rule in (policies or {}).items():
        assert folder is not None
        home = folder / "clients" / f"{client:04d}"
        home.mkdir(parents=True)
        strict = f'max_epsilon = 5.0\ndelta = 1e-5\nmodes = ["secure-sum"]\nprotect_updates = false\n[channels]\n{rule}'
        (home / "privacy.toml").write_text(strict)
    return plan, {id: plan.client(id, plan.model(), folder) for id in range(5)}


def summed(plan: Any, clients: dict[int, Any]) -> tuple[dict[str, list[float]], Any, Exchange]:
    exchange = Exchange(Inline(clients), plan.method, 0)
    state = plan.start()
    sums, total = learn_metrics(exchange, state.model, state.buffers, plan.task.metrics)
    return sums, total, exchange


def own(client: Any, model: Any) -> list[float]:
    return sums_at(client, model, {}, held_out(client.validation, client.train))[0]["accuracy"]


def test_the_total_is_the_sum_of_the_members_own_metrics():
    plan, clients = federation()
    sums, total, _ = summed(plan, clients)
    each = [own(client, plan.start().model) for client in clients.values()]
    assert sums["accuracy"] == np.sum(each, axis=0).tolist()
    assert total.claims == {id: len(held_out(c.validation, c.train)) for id, c in clients.items()}
    [*_, record] = holdfast.run(Experiment(**ROUNDS)).records
    assert record.client_metrics == {}
    assert 0 <= record.total_metrics["accuracy"] <= 1


def test_noise_is_made_once_as_the_strictest_policy_wants_it_and_entered_where_it_is_wanted(tmp_path):
    plan, clients = federation(tmp_path, {0: 'metrics = "noised:0.5"', 3: 'metrics = "noised:0.2"'})
    told = SumRequest(JOIN, METRICS, 0, {}, [], 0, {}, {})
    assert [SECURE_SUM.perform(clients[i], told, 0).noise for i in (0, 1, 3)] == [[0.5, 1e-5], None, [0.2, 1e-5]]
    sums, total, _ = summed(plan, clients)
    assert total.members == (0, 1, 2, 3, 4)
    assert sums["accuracy"][1] == sum(total.claims.values())  # how many there are is public
    for client in range(5):
        entries = read_ledger(tmp_path / "clients" / f"{client:04d}" / "privacy-ledger.json").entries
        assert [entry.claim.epsilon_nominal for entry in entries] == ([0.2] if client in (0, 3) else [])
        assert all(entry.claim.noise == "discrete gaussian, in shares" for entry in entries)


def test_shares_make_up_the_noise_of_all_metrics_together():
    metrics = [Accuracy(), BalancedAccuracy(2)]
    scale, claim = total_counts.scale_of(metrics, Wanted(0.5, 1e-5), seeded(0), 1)
    width = sum(one.width - one.counted for one in metrics)
    nothing = np.zeros(sum(one.width for one in metrics), dtype=np.int64)
    drawn = [
        sum(total_counts.with_share(nothing, metrics, scale, 4, seeded(9 * k + m)) for m in range(4))
        for k in range(300)
    ]
    assert np.std(np.stack(drawn)[:, :width]) == pytest.approx(float(scale), rel=0.1)
    assert not np.stack(drawn)[:, width:].any()
    reach = np.hypot(metrics[0].sensitivity or 0, metrics[1].sensitivity or 0)
    assert claim.sensitivity >= reach * FINE + np.sqrt(width)  # what a record moves, and the rounding of both totals
    assert claim.epsilon_total <= 0.5


def test_less_noise_than_a_policy_wants_is_refused_and_so_are_metrics_that_are_off(tmp_path):
    plan, clients = federation(tmp_path, {0: 'metrics = "noised:0.5"', 2: 'metrics = "off"'})
    model = plan.start().model
    for wanted in (Wanted(), Wanted(0.9, 1e-5), Wanted(0.5, 1e-3)):
        with pytest.raises(Refusal, match="more noise than this secure sum has"):
            metrics_vector(clients[0], told_of(model, {}, wanted), 0, 4, 1)
    with pytest.raises(Refusal, match="no epsilon and delta"):
        metrics_vector(clients[1], {"noise": torch.zeros(2, dtype=torch.float64)}, 0, 4, 1)
    _, total, exchange = summed(plan, clients)
    assert total.members == (0, 1, 3, 4)
    assert set(exchange.absent) == {2}


def test_single_metrics_are_refused_and_totals_where_no_test_is_due():
    plan, clients = federation()
    assert not EVALUATE.due(2, clients[0], plan.method)
    with pytest.raises(Refusal, match="only the members' total leaves"):
        EVALUATE.perform(clients[0], EvaluateRequest(plan.start().model, {}), 2)
    rare = replace(plan.method, evaluate_every=3)
    with pytest.raises(Refusal, match="whose model is not tested"):
        SECURE_SUM.check(SumRequest(JOIN, METRICS, 0, {}, [], 0, {}, {}), 0, clients[0], rare)
    SECURE_SUM.check(SumRequest(JOIN, METRICS, 0, {}, [], 0, {}, {}), 2, clients[0], rare)
