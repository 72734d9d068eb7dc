"""A SuperNode that was interrupted in the middle of a message: nothing of it keeps its site from working."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord, RecordDict
from flwr.app import Message as Packet
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.start_client_internal import _pull_and_store_message

from holdfast.engines.flower.node import forgetful


def interrupted(pull: Any) -> tuple[Any, Any, list[str]]:
    """The node's state after its run ended while it received a message, and the ids of the message's parts."""
    factory = ObjectStoreFactory()
    state = NodeStateFactory(objectstore_factory=factory).state()
    store = factory.store()
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    packet = Packet(RecordDict({"words": ConfigRecord({"a": 1})}), dst_node_id=7, message_type="train.job")
    packet.metadata.__dict__["_message_id"] = packet.object_id
    tree = get_object_tree(packet)
    state.store_run(Run.create_empty(packet.metadata.run_id))

    def ended(run: int, part: str) -> bytes:
        raise RunNotRunningException

    run = pull(
        state=state,
        object_store=store,
        node_config={},
        receive=lambda: (packet, tree),
        get_run=None,
        get_fab=None,
        pull_object=ended,
        confirm_message_received=None,
        trusted_entities=None,
    )
    assert run is None
    return state, store, [tree.object_id, *(child.object_id for child in tree.children)]


def test_flower_leaves_a_message_that_never_comes() -> None:
    _, store, parts = interrupted(_pull_and_store_message)
    assert any(store.get(part) == b"" for part in parts)  # known, and for ever on its way: why forgetful is there


def test_a_message_that_could_not_be_received_is_forgotten() -> None:
    state, store, parts = interrupted(forgetful(_pull_and_store_message))
    assert all(store.get(part) is None for part in parts)
    assert not state.get_messages_legacy()
