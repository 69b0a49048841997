"""Faults of Fetch, by which a producer reads a log: what each kind of `Schedule.reads` does.

Each method `_read_<kind>` carries out the fault of that kind. It is called before the request is
served. Only the swarm draws these faults (`read_draws`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from struct import Struct
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from aioidem._broker.entities import Entity
from aioidem._broker.intercept import Action, CloseConnection, Delay, Drop, RequestSeen, Rewrite
from aioidem._broker.partition import Partition
from aioidem.errors import KafkaConnectionError

from .schedule import Glitch

if TYPE_CHECKING:
    from .sim_connection import SimConnection
    from .world import World

__all__ = ["ReadFaults", "first_batches"]

_INT32 = Struct(">i")
# In a batch, its length is after its base offset, and does not count these two fields.
_BEFORE_LENGTH, _BEFORE_BATCH = 8, 12
_THROTTLED = timedelta(milliseconds=20)


class ReadFaults:
    """The faults of the Fetch requests by which a producer reads a log."""

    _world: World
    _later: Callable[[float, Callable[[], None]], None]
    _on_garbage: Callable[[Glitch, RequestSeen], Action | None]
    _do_move: Callable[[str, int, int], None]

    def __init__(self) -> None:
        self._reads: dict[int, Glitch] = {}
        # How many Fetch requests were served; the answers, by connection and correlation id, that
        # are the last thing that reaches the producer on their connection.
        self._read = -1
        self._last_words: set[tuple[int, int]] = set()
        # The partitions of which a broker, as leader in some epoch, has said what is committed.
        self._told: set[tuple[int, str, int, int]] = set()

    def _note(self, kind: str) -> None:
        raise NotImplementedError

    def _fetched(self, seen: RequestSeen) -> Action | None:
        """Choose what happens to a Fetch request."""
        self._read += 1
        glitch = self._reads.get(self._read)
        if glitch is None or glitch.kind != "behind":
            self._told.update(self._leading(seen))
        if glitch is None:
            return None
        self._world.trace(f"fetch {self._read}: {glitch.kind} {glitch.args}")
        self._note(f"read {glitch.kind}")
        action: Action | None = getattr(self, f"_read_{glitch.kind}")(seen, *glitch.args)
        return action

    def hangs_up_after(self, connection: SimConnection, payload: bytes) -> bool:
        """Return whether a connection is reset as soon as the producer has this answer."""
        return (connection.peer.id, int.from_bytes(payload[:4], "big")) in self._last_words

    def _read_code(self, _seen: RequestSeen, code: int) -> Action:
        """Refuse to read."""
        return _refused(code)

    def _read_short(self, _seen: RequestSeen, batches: int, torn: int) -> Action:
        """Send so few batches of the page, and so many bytes of the next one."""
        return _pages(lambda records: first_batches(records, batches, torn))

    def _read_empty(self, _seen: RequestSeen) -> Action:
        """Send an empty page, though the high watermark is above it."""
        return _pages(lambda _: b"")

    def _read_behind(self, seen: RequestSeen, offsets: int) -> Action | None:
        """Name a high watermark so far below the requested offset, as a leader just elected may.

        It does not know then that what it has is committed, so the page is empty. Once it has named
        what is committed, it names no less.
        """
        if not self._told.isdisjoint(self._leading(seen)):
            return None
        [offset] = [part.fetch_offset for topic in seen.request.topics for part in topic.partitions]
        behind = max(0, offset - offsets)
        return _answers(lambda part: dataclasses.replace(part, records=b"", high_watermark=behind))

    def _leading(self, seen: RequestSeen) -> set[tuple[int, str, int, int]]:
        """Return the partitions that a request reads, with the broker and their leader's epoch."""
        return {
            (seen.broker_id, partition.topic.name, partition.index, partition.leader_epoch)
            for partition in self._read_partitions(seen)
        }

    def _read_absent(self, _seen: RequestSeen) -> Action:
        """Leave the partition out, as brokers do that throttle a client (KIP-219)."""
        return Rewrite(
            lambda answer: dataclasses.replace(answer, responses=(), throttle_time=_THROTTLED)
        )

    def _read_drop(self, _seen: RequestSeen, silent: bool) -> Action:
        """Lose the answer."""
        return Drop(processed=True, silent=True) if silent else CloseConnection(processed=True)

    def _read_late(self, _seen: RequestSeen, seconds: float) -> Action:
        """Serve the request late."""
        return Delay(seconds)

    def _read_garbage(self, seen: RequestSeen, nbytes: int) -> Action | None:
        """Cut the answer short."""
        return self._on_garbage(Glitch(0, "garbage", (nbytes,)), seen)

    def _read_reset(self, seen: RequestSeen) -> Action | None:
        """Reset the connection when the producer has the page, before it can ask for the next."""
        self._last_words.add((seen.connection_id, seen.correlation_id))
        return None

    def _read_held(
        self, seen: RequestSeen, seconds: float, moves: bool, code: int
    ) -> Action | None:
        """Let the answer, and all that follow it, come late; the leader may move meanwhile.

        The answer says what was so when the request was served: it is a page, or an error code.
        """
        self._move_away(seen, moves)
        connection = self._world.connection_of(seen.connection_id)
        if connection is not None:
            connection.held_until = max(connection.held_until, self._world.now + seconds)
            self._later(seconds, lambda: None)
        return _refused(code) if code else None

    def _read_parting(self, seen: RequestSeen, seconds: float, moves: bool) -> Action | None:
        """Let one batch of a page come late, as the last thing on its connection.

        The producer cannot ask for the next page. The leader may move meanwhile.
        """
        self._read_held(seen, seconds, moves, 0)
        self._read_reset(seen)
        return self._read_short(seen, 1, 0)

    def _read_lost(self, seen: RequestSeen, seconds: float, moves: bool) -> Action:
        """Lose the answer, and reset the connection later; the leader may move meanwhile."""
        self._move_away(seen, moves)
        connection = self._world.connection_of(seen.connection_id)
        if connection is not None:
            reset = KafkaConnectionError("reset by peer")
            self._later(seconds, lambda: self._world.lose(connection, reset))
        return Drop(processed=True, silent=True)

    def _move_away(self, seen: RequestSeen, moves: bool) -> None:
        """Let another broker lead the partition, right after the request is served."""
        if not moves:
            return
        for partition in self._read_partitions(seen):
            others = [b for b in partition.isr if b != seen.broker_id]
            if others:
                name, index, leader = partition.topic.name, partition.index, others[0]
                self._later(0.0, lambda: self._do_move(name, index, leader))  # noqa: B023

    def _read_partitions(self, seen: RequestSeen) -> list[Partition]:
        topology, found = self._world.cluster.topology, []
        for wanted in seen.request.topics:
            topic_id = getattr(wanted, "topic_id", None)
            topic = topology.topics_by_id.get(topic_id) if topic_id else None
            topic = topic or self._world.cluster.topics.get(getattr(wanted, "topic", ""))
            if topic is not None:
                found += [topic.partition(part.partition) for part in wanted.partitions]
        return [partition for partition in found if partition is not None]


def first_batches(records: bytes, batches: int, torn: int = 0) -> bytes:
    """Return the first so many batches of a page, and so many bytes of the next one."""
    at = 0
    for _ in range(batches):
        if at + _BEFORE_BATCH > len(records):
            break
        at += _BEFORE_BATCH + int(_INT32.unpack_from(records, at + _BEFORE_LENGTH)[0])
    return records[: at + torn]


def _pages(cut: Callable[[bytes], bytes]) -> Rewrite:
    """Return an action that changes the records of an answer."""
    return _answers(lambda part: dataclasses.replace(part, records=cut(bytes(part.records or b""))))


def _refused(code: int) -> Rewrite:
    return _answers(
        lambda part: dataclasses.replace(
            part, error_code=ErrorCode(code), high_watermark=-1, records=None
        )
    )


def _answers(change: Callable[[Any], Any]) -> Rewrite:
    def changed(answer: Entity) -> Entity:
        topics = tuple(
            dataclasses.replace(topic, partitions=tuple(change(part) for part in topic.partitions))
            for topic in answer.responses
        )
        return dataclasses.replace(answer, responses=topics)

    return Rewrite(changed)
