"""The head of a run with algorithm = "oneshot": which one it is, known before round 1, and its fit to digests."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.context import Context
from holdfast.core.errors import HoldfastError
from holdfast.core.types import State, Tensors
from holdfast.data.contract import Kind
from holdfast.data.kinds import kind_of
from holdfast.digests.digest import Digest
from holdfast.digests.moments import MomentDigest
from holdfast.digests.received import noise_variance, opened, scaled, share_of
from holdfast.digests.release_options import ReleaseOptions
from holdfast.digests.sums import SumDigest, scaled_sums
from holdfast.heads.choosing import (
    KERNEL,
    OF_MOMENTS,
    OF_TOTAL,
    SERVER_STEP,
    Noise,
    Received,
    check_head,
    choose_for_sums,
    evidence_of,
    fit,
    model_of,
    records_of,
)
from holdfast.heads.trained import server_step
from holdfast.models.networks import buffers_of, fill, weights_of

BY_KIND = "auto"  # of kinds without classes, which have one head each


def head_of(name: str, options: ReleaseOptions, kind: Kind, total: bool = False) -> str:
    """The head that a run fits; its network must be known before any digest is, so "auto" goes by what leaves.

    total: whether only the members' total leaves, which has one covariance for all classes.
    """
    check_head(name)
    if not kind.has_classes:
        if name != BY_KIND:
            raise HoldfastError(
                f"algorithm.head: {name!r} is for classes; kind {kind.name!r} has one head: leave it out."
            )
        return BY_KIND
    if name != "auto":
        return name
    if total:
        return OF_TOTAL
    return {"sums": "lda", "moments": OF_MOMENTS, "paper": KERNEL}.get(options.mode, SERVER_STEP)


def model_for(head: str) -> str:
    """The model that a run with this head has, as an experiment names it."""
    return "head:form=linear" if head == BY_KIND else model_of(head)


def fit_run(options: ReleaseOptions, context: Context, state: State, head: str) -> tuple[Tensors, Tensors]:
    """Weights and buffers of the head fitted to all digests, each counting for no more than its client's share."""
    counted = context.sizes.counted({client: state.claims[client] for client in state.digests})
    received = [within_share(options, context, client, sealed, counted[client])
                for client, sealed in sorted(state.digests.items())]  # fmt: skip
    name = head_of(head, options, kind_of(context.bench.about.kind))
    if name == BY_KIND:
        network = choose_for_sums([one for one in received if isinstance(one, SumDigest)]).network
    elif name == SERVER_STEP:  # with the experiment's own network
        network, noise = context.bench.model, noise_of(options, context, received)
        fill(network, state.model, state.buffers)
        server_step(network, records_of(received, evidence_of(received, noise), noise, context.seed), context.seed)
    else:
        network = fit(name, received, noise_of(options, context, received), context.seed)
    return weights_of(network), buffers_of(network)


def fit_total(context: Context, total: MomentDigest | SumDigest, head: str) -> tuple[Tensors, Tensors]:
    """Weights and buffers of the head fitted to what all members' records say together."""
    if isinstance(total, SumDigest):
        network = choose_for_sums([total]).network
        return weights_of(network), buffers_of(network)
    network = fit(OF_TOTAL if head == BY_KIND else head, [total], seed=context.seed)
    return weights_of(network), buffers_of(network)


def within_share(options: ReleaseOptions, context: Context, client: int, sealed: Tensors, most: int) -> Received:
    """A client's digest that speaks for no more records than count."""
    digest: Received = opened(options, context, client, sealed)
    if isinstance(digest, Digest):
        return share_of(options, context, digest, client, most)
    if isinstance(digest, SumDigest):
        return scaled_sums(digest, most)
    return scaled(digest, most / max(1.0, float(digest.counts.sum())))


def noise_of(options: ReleaseOptions, context: Context, received: Sequence[Received]) -> Noise:
    """What is known of the rows of mixed digests."""
    rows = [one for one in received if isinstance(one, Digest)]
    if not rows:
        return Noise()
    about = context.bench.about
    bound = about.norm_bound if options.mode == "paper" else options.clip
    return Noise(noise_variance(options, about, rows[0]), bound)
