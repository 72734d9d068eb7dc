"""A federation over a Flower grid: messages are pushed, replies pulled until the deadline, silence becomes absence.

A site has at most one message to work on. One that did not answer in time is greeted before it is asked again, so a
site that wakes up finds one old job, not one for each round it slept through. Its late answer is thrown away or, if
late updates count, handed over in the next round in which it gives no fresh one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.app import Message as Packet
from flwr.serverapp import Grid

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import sentence_of
from holdfast.core.files import append_line
from holdfast.core.types import Absent, Late, Message, Reply, has_withdrawn
from holdfast.flower.engine.answers import GONE, awaits, read_answer
from holdfast.flower.engine.codec import Blobs, Letter, decode, encode, wire_size
from holdfast.flower.engine.deadline import Deadline, median_of
from holdfast.flower.engine.exchange import Exchange, Wire
from holdfast.flower.engine.heads import HEADS, Heads
from holdfast.flower.engine.puller import Puller
from holdfast.flower.engine.sites import Sites
from holdfast.flower.engine.spool import Spool
from holdfast.flower.engine.waits import MOST, pace
from holdfast.runs.presence import PRESENCE, Presence

log = logging.getLogger("holdfast")
HELLO = "query.hello"
TYPES = {"train": "train.job", "evaluate": "evaluate.job"}  # Flower's kinds of messages; other jobs are queries
OTHER = "query.job"
ASK_AGAIN = 10.0  # seconds: a site that waits for approval
GREET_AGAIN = 15.0  # seconds: a greeting may be lost with the process that took it
FORGET = 3600.0  # seconds for which Flower keeps a message that nobody takes


class GridFederation:
    """The sites of a run, asked through Flower."""

    def __init__(
        self,
        grid: Grid,
        sites: Sites,
        clients: int,
        experiment: str = "",
        deadline: Deadline | None = None,
        wire: Wire | None = None,
        journal: Path | None = None,
        puller: Puller | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        patience: float = 0.0,
        takes_late: bool = False,
    ) -> None:
        self._grid, self._sites, self._experiment = grid, sites, experiment
        self._clients = range(clients)
        self._deadline = deadline or Deadline()
        self._wire = wire or Wire()
        self._journal = journal
        self._heads = Heads(journal and journal.with_name(HEADS))
        self._presence = Presence(journal and journal.with_name(PRESENCE))
        self._puller = puller
        self._spool: Spool | None = None  # where replies are kept that come one by one
        self._patience = patience  # seconds that the run may still wait for sites' approval
        self._clock, self._sleep = clock, sleep
        self._mail: dict[str, Packet] = {}  # replies that have arrived, by the message they answer
        self._hellos: dict[str, tuple[int, float]] = {}  # id of a greeting -> the node, and when it was greeted
        self._late: dict[str, int] = {}  # id of a message that was not answered in time -> its node
        self._takes_late = takes_late
        self._owed: dict[str, Message] = {}  # the same, where late updates count -> the message
        self._arrived: dict[int, Late] = {}  # client -> its late answer to an earlier round
        self._medians: dict[str, float] = {}  # job, and its step where it has some -> seconds of its last exchange
        self._looked = -1.0

    @property
    def clients(self) -> Sequence[int]:
        return self._clients

    def close(self) -> None:
        pass

    def gather(self, seconds: float) -> None:
        """Wait until all sites are there, or some when the time is up; nobody at all is an error."""
        start = self._clock()
        while self._sites.missing and self._clock() - start < seconds:
            self._look_around()
            self._hear()
            if self._sites.missing:
                self._sleep(self._wire.poll)
        if len(self._sites.missing) == len(self._clients):
            why = "".join(f" A node was refused: {reason}." for reason in self._sites.refused.values())
            raise HoldfastError(f"No site joined within {seconds:.0f} s; start the SuperNodes, then run again.{why}")
        if self._sites.missing:
            log.warning("The run starts without %s.", ", ".join(self._sites.missing))

    def ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        """Ask, and go on asking those who wait for approval as long as the run's patience lasts."""
        answers = dict(zip([m.client for m in messages], self._ask(messages), strict=True))
        asked = [self._sites.name_of(message.client) for message in messages]
        said = 0
        while True:
            waiting = [message for message in messages if awaits(answers[message.client])]
            names = [self._sites.name_of(message.client) for message in waiting]
            self._presence.waits(names, asked)
            if waiting and len(waiting) != said:
                said = len(waiting)
                log.warning("Waiting for approval at %s.", ", ".join(names))
            if not waiting or self._patience <= 0:
                break
            pause = min(ASK_AGAIN, self._patience)
            self._patience -= pause
            self._sleep(pause)
            answers |= zip([m.client for m in waiting], self._ask(waiting), strict=True)
        return [answers[message.client] for message in messages]

    def each(self, messages: Sequence[Message]) -> Iterator[Reply | Absent]:
        """As `ask`; a reply's tensors come into memory when it is their turn."""
        self._spool = Spool(self._journal and self._journal.parent)
        try:
            yield from self._spool.each(self.ask(messages))
        finally:
            self._spool = None

    def _ask(self, messages: Sequence[Message]) -> list[Reply | Absent]:
        if not messages:
            return []
        exchange = Exchange(self._clock(), {message.client: message for message in messages})
        job = f"{messages[0].job} {messages[0].scalars.get('step', '')}"
        self._looked = -1.0
        while True:
            self._look_around()
            self._hear()
            self._send(exchange)
            self._receive(exchange)
            exchange.start += self._puller.turn.queued() if self._puller else 0.0  # nobody is late for that
            passed = self._clock() - exchange.start
            asked = len(messages) - len(exchange.waiting)
            limit = self._deadline.seconds(asked, list(exchange.seconds.values()), self._medians.get(job))
            # Once someone has answered, nobody waits for sites that are not connected or still owe an earlier answer;
            # one whose connection broke in this exchange has until the deadline to come back, as if it were slow.
            done = not (exchange.sent or exchange.lost) and (exchange.answers or not exchange.waiting)
            if done or passed >= limit:
                break
            # Nobody answers in half of the usual time; looking for replies all the same would slow the SuperLink down.
            early = min(MOST, self._medians.get(job, 0.0) / 2 - passed)
            self._sleep(min(max(pace(passed, self._wire.poll), early), limit - passed))
        passed = self._clock() - exchange.start
        self._close(exchange, passed)
        median = median_of(list(exchange.seconds.values()))
        if median is not None:
            self._medians[job] = median
        self._write_down(exchange, messages[0], passed)
        if messages[0].job == "train":
            self._hand_over(exchange)
        self._heads.keep()
        return [exchange.answers[message.client] for message in messages]

    def _look_around(self) -> None:
        """See which nodes are there; who has no site yet is given one by its key, or asked for its name."""
        now = self._clock()
        if 0 <= now - self._looked < 1.0:
            return
        self._looked = now
        nodes = {node.node_id: node.name for node in self._grid.get_nodes()}
        for client in self._clients:
            node = self._sites.node_of(client)
            if node is not None and node not in nodes:
                self._sites.forget(node)
        for node in [node for node in self._sites.refused if node not in nodes]:
            self._sites.forget(node)
        self._hellos = {number: (n, when) for number, (n, when) in self._hellos.items() if now - when < FORGET}
        for node, name in nodes.items():
            if self._sites.knows(node):
                continue
            if name:
                self._sites.registered(node, name)
            else:
                self._greet(node)
            if node in self._sites.refused:
                log.warning("Node %s is refused: %s.", node, self._sites.refused[node])
        self._presence.saw(self._sites.connected, self._sites.refused.values())

    def _greet(self, node: int) -> None:
        now = self._clock()
        if any(greeted == node and now - when < GREET_AGAIN for greeted, when in self._hellos.values()):
            return
        letter = Letter(-1, -1, "hello", experiment=self._experiment)
        self._hellos[self._push(encode(letter), node, HELLO)] = (node, now)

    def _hear(self) -> None:
        """Take the answers to greetings, and those that come too late."""
        open_ids = [*self._late, *self._hellos]  # a late reply first: a greeting's answer ends the wait for it
        for packet in self._pull(open_ids):
            asked = packet.metadata.reply_to_message_id
            if asked in self._late:  # its site is free again
                node = self._late.pop(asked)
                self._take_late(packet, node)
                self._free(node)
                continue
            node, _ = self._hellos.pop(asked, (-1, 0.0))
            if node < 0 or packet.has_error():
                continue
            self._free(node)
            if self._sites.knows(node):
                continue
            try:
                said = decode(packet.content, 1 << 16)
                if said.error:
                    self._sites.refused[node] = sentence_of(said.error)
                else:
                    self._sites.claim(node, said.scalars.get("site"), said.scalars.get("token"))
            except HoldfastError as error:
                self._sites.refused[node] = f"its greeting is not one: {error}"
            if node in self._sites.refused:
                log.warning("Node %s is refused: %s.", node, self._sites.refused[node])

    def _free(self, node: int) -> None:
        """Nothing is owed by this node any more."""
        self._late = {number: n for number, n in self._late.items() if n != node}
        self._owed = {number: message for number, message in self._owed.items() if number in self._late}

    def _take_late(self, packet: Packet, node: int) -> None:
        """Keep the late answer to a `train`, if late updates count."""
        message = self._owed.pop(packet.metadata.reply_to_message_id, None)
        if message is None:
            log.warning("Node %s answered too late: its reply was thrown away.", node)
            return
        answer = read_answer(packet, message, self._wire.bound, self._sites.name_of(message.client))
        if isinstance(answer, Reply):
            self._heads.saw(message.client, packet)
            self._arrived[message.client] = Late(message.client, "did not answer in time", message, answer)

    def _hand_over(self, exchange: Exchange) -> None:
        """Late answers in the place of absences; whoever has answered afresh, or withdrawn, has none."""
        for client, answer in exchange.answers.items():
            late = self._arrived.pop(client, None)
            if late is not None and isinstance(answer, Absent) and not has_withdrawn(answer.reason):
                exchange.answers[client] = late

    def _send(self, exchange: Exchange) -> None:
        """Push the messages of all sites that are there and free; greet those that still owe an answer."""
        ready: list[Packet] = []
        whose: list[Message] = []
        blobs: Blobs = {}
        for client, message in list(exchange.waiting.items()):
            node = self._sites.node_of(client)
            if node is None:
                continue
            if node in self._late.values():
                self._greet(node)
                continue
            letter = Letter(
                client,
                message.round,
                message.job,
                message.tensors,
                message.scalars,
                half=self._wire.half_up,
                experiment=self._experiment,
                head=self._heads.of(client),
            )
            records = encode(letter, halve=self._wire.half_down, bound=self._wire.bound, known=blobs)
            ready.append(self._packet(records, node, TYPES.get(message.job, OTHER), str(message.round)))
            whose.append(message)
            exchange.bytes_down += wire_size(records)
        if not ready:
            return
        for number, message in zip(self._grid.push_messages(ready), whose, strict=True):
            del exchange.waiting[message.client]
            exchange.lost.discard(message.client)
            exchange.pushed[message.client] = self._clock()
            if number:
                exchange.sent[number] = message
            else:
                exchange.answers[message.client] = Absent(message.client, "Flower did not take its message")

    def _receive(self, exchange: Exchange) -> None:
        for packet in self._pull(list(exchange.sent)):
            client = self._read(packet, exchange)
            del packet  # before the next large one is taken
            if self._spool:
                self._spool.put(exchange.answers, client)

    def _read(self, packet: Packet, exchange: Exchange) -> int:
        """Note what a site has answered, and tell which one it is."""
        message = exchange.sent.pop(packet.metadata.reply_to_message_id)
        if packet.has_error() and packet.error.code == GONE:
            exchange.waiting[message.client] = message
            exchange.lost.add(message.client)
            return message.client
        if packet.has_content():
            exchange.bytes_up += wire_size(packet.content)
        answer = read_answer(packet, message, self._wire.bound, self._sites.name_of(message.client))
        if isinstance(answer, Reply):
            self._heads.saw(message.client, packet)
            now = self._clock()
            exchange.seconds[message.client] = now - exchange.start
            answer = replace(answer, took=now - exchange.pushed[message.client])
        exchange.answers[message.client] = answer
        return message.client

    def _close(self, exchange: Exchange, passed: float) -> None:
        """Whoever has not answered is absent, with the reason."""
        enough = self._deadline.enough
        for number, message in exchange.sent.items():
            node = self._sites.node_of(message.client)
            if node is not None:
                self._late[number] = node
                if self._takes_late and message.job == "train":
                    self._owed[number] = message
            if enough is not None and len(exchange.seconds) >= enough:
                reason = f"did not answer before {enough} others had"
            else:
                reason = f"did not answer within {passed:.1f} s"
            exchange.answers[message.client] = Absent(message.client, reason)
        for client in exchange.waiting:
            here = self._sites.node_of(client) is not None
            reason = "still owes an earlier answer" if here else "is not connected"
            exchange.answers[client] = Absent(client, "lost its connection" if client in exchange.lost else reason)

    def _write_down(self, exchange: Exchange, message: Message, passed: float) -> None:
        if self._journal is not None:
            append_line(self._journal, exchange.line(message, passed))

    def _packet(self, records: object, node: int, kind: str, group: str = "") -> Packet:
        return Packet(records, dst_node_id=node, message_type=kind, ttl=FORGET, group_id=group)  # type: ignore[call-overload, no-any-return]

    def _push(self, records: object, node: int, kind: str) -> str:
        return next(iter(self._grid.push_messages([self._packet(records, node, kind)])))

    def _pull(self, numbers: Sequence[str]) -> Iterator[Packet]:
        """Replies to these messages; those to others that came along are kept until they are asked for."""
        wanted = [number for number in numbers if number not in self._mail]
        self._mail |= {packet.metadata.reply_to_message_id: packet for packet in (self._take(wanted) if wanted else ())}
        for number in numbers:
            if number in self._mail:
                yield self._mail.pop(number)
                if self._puller:
                    self._puller.turn.give_back(number)

    def _take(self, numbers: Sequence[str]) -> Iterable[Packet]:
        if self._puller is None:
            return self._grid.pull_messages(numbers)
        return self._puller.pull(numbers, in_turn=self._spool is not None)
