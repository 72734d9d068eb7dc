"""Mods for the ClientApp of one's own app: they add a digest to a reply, and test the models of peers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.app import Message as Packet
from torch import Tensor

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import SENTENCES, Refusal
from holdfast.core.randomness import rng
from holdfast.core.types import Tensors
from holdfast.digests.compact import Compact
from holdfast.digests.digest import Digest, make_digest, seal_digest
from holdfast.digests.mixing import surely_mixed
from holdfast.flower.deploy.policy import carry_privacy, draw_token, read_site_policy
from holdfast.flower.deploy.site import name_of
from holdfast.privacy.claim import only_mixing
from holdfast.privacy.gate import house_of, let_out

log = logging.getLogger("holdfast")

DIGEST, WANTED, TESTED = "holdfast-digest", "holdfast-have", "holdfast-test"
Answer = Callable[[Packet, Context], Packet]
Mod = Callable[[Packet, Context, Answer], Packet]  # as Flower means it
ReadFeatures = Callable[[Context], tuple[Tensor, Tensor]]  # the site's features (n, ...) and whole-number labels (n,)


def digest_mod(
    features: ReadFeatures, classes: int, *, spd: int = 4, encoder: str = "", seed: int = 0, bits: int = 8
) -> Mod:
    """Adds the site's digest to a train reply when the moderator does not have it yet.

    Such digests are mixed and carry no promise of privacy. Where the node config names a `folder` (and a `policy`, see
    policy.py), that policy decides and what leaves is entered in the ledger there. Without a `folder` there is NEITHER
    POLICY NOR LEDGER: every site that is asked sends its digest, and a warning says so once.
    """
    compact = {8: Compact("int8"), 16: Compact("float16"), 32: Compact("float32")}.get(bits)
    if compact is None:
        raise HoldfastError(f"digest_mod: bits must be 8, 16 or 32, got {bits}.")

    def mod(packet: Packet, context: Context, call_next: Answer) -> Packet:
        reply = call_next(packet, context)
        asked = [record[WANTED] for record in packet.content.config_records.values() if WANTED in record]
        if not asked or not reply.has_content():
            return reply
        if str(context.node_id) not in asked[0]:  # type: ignore[operator]
            site = site_of(context)
            try:
                values, labels = features(context)
                generator = rng(seed, -1, -1, f"digest of {site}")
                digest = make_digest(values, labels, classes, generator=generator, spd=spd, encoder=encoder)
            except Exception:  # Flower sends an exception's text to the moderator, and this one may quote the data
                log.exception("digest_mod: there is no digest of %s", site)
                raise HoldfastError(SENTENCES["data"]) from None
            if may_leave(digest, site, context):
                reply.content[DIGEST] = seal(seal_digest(digest, compact))
        return reply

    return mod


def may_leave(digest: Digest, site: str, context: Context) -> bool:
    """Whether the site's policy lets the digest leave, entered in its ledger first; a refusal is said at the site."""
    config = context.node_config
    if not config.get("folder"):
        warn_once()
        return True
    folder = Path(str(config["folder"])).expanduser()
    try:
        draw_token(folder)  # makes the folder known as a site's, with one ledger for all
        if config.get("policy"):
            policy = read_site_policy(Path(str(config["policy"])))
            carry_privacy(policy, folder)
            if not policy.digest:
                raise Refusal("digest-kept", "policy: digest = false.")
        claim = only_mixing(math.prod(digest.feature_shape), surely_mixed("balanced", digest.spd, None))
        let_out(house_of(folder), claim, f"digest of {site}, by digest_mod")
    except HoldfastError as error:
        log.warning("digest_mod: the digest of %s stays: %s", site, error)
        return False
    return True


@cache
def warn_once() -> None:
    log.warning(
        "digest_mod: THERE IS NO POLICY AND NO LEDGER, so this site's digest leaves as it is, without any promise of "
        "privacy; name a folder (and a policy) in the node config to decide and to keep account."
    )


def peer_test_mod() -> Mod:
    """Tests the models of peers with the app's own evaluate function, and answers with their scores."""

    def mod(packet: Packet, context: Context, call_next: Answer) -> Packet:
        config = packet.content.config_records.get("config", ConfigRecord())
        if TESTED not in config:
            return call_next(packet, context)
        scores: dict[str, int | float | list[int] | list[float]] = {}
        for name in map(str, config[TESTED]):  # type: ignore[arg-type]
            words = ConfigRecord({"server-round": config["server-round"]})
            content = RecordDict({"arrays": packet.content[name], "config": words})
            answer = call_next(Packet(content=content, metadata=packet.metadata), context)  # type: ignore[call-overload]
            metrics = next(iter(answer.content.metric_records.values()), MetricRecord())
            value = metrics.get(str(config["score"]))
            if not isinstance(value, float):
                raise HoldfastError(
                    f"evaluate gave no {config['score']!r}, only {sorted(metrics)}; name the key of the accuracy with "
                    "FedTest(score=...)."
                )
            scores[name] = value
        return Packet(RecordDict({"scores": MetricRecord(scores)}), reply_to=packet)

    return mod


def site_of(context: Context) -> str:
    """The site's name, or its node's number where the node config names none."""
    try:
        return name_of(context.node_config)
    except HoldfastError:
        return f"node-{context.node_id}"


def seal(tensors: Tensors) -> ArrayRecord:
    return ArrayRecord({name: Array(tensor.numpy()) for name, tensor in tensors.items()})


def unseal(record: ArrayRecord) -> Tensors:
    """The tensors of a record; numpy reads no pickle."""
    return {name: torch.from_numpy(np.array(array.numpy())) for name, array in record.items()}
