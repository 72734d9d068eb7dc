"""Mods for the ClientApp of one's own app: they add a digest to a reply, and test the models of peers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.app import Message as Packet
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor

from holdfast.compact import Compact
from holdfast.core import Tensors
from holdfast.digests import make_digest, seal_digest
from holdfast.engines.flower.site import name_of
from holdfast.errors import HoldfastError
from holdfast.randomness import rng

DIGEST, WANTED, TESTED = "holdfast-digest", "holdfast-have", "holdfast-test"
ReadFeatures = Callable[[Context], tuple[Tensor, Tensor]]  # the site's features (n, ...) and whole-number labels (n,)


def digest_mod(
    features: ReadFeatures, classes: int, *, spd: int = 4, encoder: str = "", seed: int = 0, bits: int = 8
) -> Mod:
    """Adds the site's digest to a train reply when the moderator does not have it yet."""
    compact = {8: Compact("int8"), 16: Compact("float16"), 32: Compact("float32")}.get(bits)
    if compact is None:
        raise HoldfastError(f"digest_mod: bits must be 8, 16 or 32, got {bits}.")

    def mod(packet: Packet, context: Context, call_next: ClientAppCallable) -> Packet:
        reply = call_next(packet, context)
        asked = [record[WANTED] for record in packet.content.config_records.values() if WANTED in record]
        if not asked or not reply.has_content():
            return reply
        if str(context.node_id) not in asked[0]:  # type: ignore[operator]
            values, labels = features(context)
            generator = rng(seed, -1, -1, f"digest of {site_of(context)}")
            digest = make_digest(values, labels, classes, generator=generator, spd=spd, encoder=encoder)
            reply.content[DIGEST] = seal(seal_digest(digest, compact))
        return reply

    return mod


def peer_test_mod() -> Mod:
    """Tests the models of peers with the app's own evaluate function, and answers with their scores."""

    def mod(packet: Packet, context: Context, call_next: ClientAppCallable) -> Packet:
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
