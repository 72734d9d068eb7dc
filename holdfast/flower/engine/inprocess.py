"""A Flower grid in this process: the same ClientApp, called directly. For tests, and to try an app out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, RecordDict
from flwr.app import Message as Packet
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from holdfast.core.errors import HoldfastError

UserConfig = dict[str, Any]


class InProcessGrid(Grid):
    """Nodes that answer when asked for their reply; every packet goes into Flower's bytes and back."""

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[int, UserConfig],
        names: Mapping[int, str] | None = None,
        run_config: UserConfig | None = None,
    ) -> None:
        mine = private().Identity
        mine.run_id = mine.node_id = mine.task_id = 1  # Flower stamps each message with these
        self._app = app
        self._run_config = run_config or {}
        self.nodes = dict(nodes)
        self._names = dict(names or {})
        self._packets: dict[str, Packet] = {}
        self._count = 0

    @property
    def run(self) -> Any:
        return None

    def set_run(self, run: Any) -> None:
        pass

    def create_message(self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: Any = None) -> Packet:  # fmt: skip # noqa: E501
        return Packet(content, dst_node_id=dst_node_id, message_type=message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[Any]:
        return [SimpleNamespace(node_id=node, name=self._names.get(node, "")) for node in self.nodes]

    def push_messages(self, messages: Iterable[Packet]) -> Iterable[str]:
        numbers = []
        for packet in messages:
            self._count += 1
            number = f"packet-{self._count}"
            copy = through_bytes(packet)
            copy.metadata.__dict__["_message_id"] = number
            self._packets[number] = copy
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Packet]:
        replies = [self._answer(self._packets.pop(number)) for number in list(message_ids) if number in self._packets]
        return [through_bytes(reply) for reply in replies]

    def send_and_receive(self, messages: Iterable[Packet], *, timeout: float | None = None) -> Iterable[Packet]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, packet: Packet) -> Packet:
        node = packet.metadata.dst_node_id
        if node not in self.nodes:
            return Packet(Error(5, "Node Unavailable"), reply_to=packet)
        context = Context(0, node, self.nodes[node], RecordDict(), self._run_config)
        try:
            return self._app(packet, context)
        except Exception as error:
            return Packet(Error(2, f"{type(error)}:<'{error}'>"), reply_to=packet)


@cache
def private() -> Any:
    """What this grid needs of Flower's inside; nothing else of Holdfast needs it."""
    try:
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
        from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError as error:
        raise HoldfastError(
            f"InProcessGrid does not fit this Flower ({error}); try the app out with `holdfast flower up`."
        ) from None
    return SimpleNamespace(parts=get_all_nested_objects, join=inflate_object_from_contents, Identity=TaskIdentity)


def through_bytes(packet: Packet) -> Packet:
    """The packet as it is after the way through Flower's serialisation."""
    contents = {number: item.deflate() for number, item in private().parts(packet).items()}
    copy: Packet = private().join(packet.object_id, contents)
    return copy
