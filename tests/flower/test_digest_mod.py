"""digest_mod keeps to a site's policy and ledger, or says that it has neither; no word of an error leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.app import Message as Packet
from strategy_helpers import make_app, net, read

from holdfast.flower import InProcessGrid, digest_mod
from holdfast.flower.parts.mods import DIGEST, WANTED, warn_once
from holdfast.privacy.ledger import read_ledger


def ask(mod: Any, **config: Any) -> Packet:
    grid = InProcessGrid(make_app([mod]), {100: {"partition-id": 0, **config}})
    words = ConfigRecord({WANTED: [""]})
    content = RecordDict({"arrays": ArrayRecord(net().state_dict()), "config": words})
    [reply] = grid.send_and_receive([Packet(content, dst_node_id=100, message_type="train")])
    return reply


def test_without_a_folder_it_warns_that_there_is_no_policy(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    for _ in range(2):
        assert DIGEST in ask(digest_mod(read, 3, spd=2)).content
    assert caplog.text.count("THERE IS NO POLICY AND NO LEDGER") == 1


@pytest.mark.parametrize(
    ("policy", "leaves"),
    [
        ("", True),
        ("digest = false", False),
        ("digets = true", False),
        ('[privacy]\nmax_epsilon = 3.0\ndelta = 1e-5\nmodes = ["paper"]', False),  # mixing promises no epsilon
        ('[privacy]\nmax_epsilon = inf\ndelta = 1e-5\nmodes = ["paper"]\nmin_spd = 4', False),
        ('[privacy]\nmax_epsilon = inf\ndelta = 1e-5\nmodes = ["paper"]\nmin_spd = 2', True),
    ],
)
def test_a_policy_decides_and_a_ledger_counts(tmp_path: Path, policy: str, leaves: bool) -> None:
    (tmp_path / "policy.toml").write_text(policy)
    config = {"folder": str(tmp_path / "site"), "policy": str(tmp_path / "policy.toml")}
    assert (DIGEST in ask(digest_mod(read, 3, spd=2), **config).content) == leaves
    assert len(read_ledger(tmp_path / "site" / "privacy-ledger.json").entries) == leaves


def test_an_error_does_not_quote_the_data(caplog: pytest.LogCaptureFixture) -> None:
    def broken(context: Any) -> Any:
        raise ValueError("Anna Muster, born 1961")

    reply = ask(digest_mod(broken, 3, spd=2))
    assert reply.has_error()
    assert "Anna" not in reply.error.reason
    assert "Anna Muster" in caplog.text
