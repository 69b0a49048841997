"""Answers to Produce requests: what each part of an answer, and the whole, changes."""

from __future__ import annotations

from random import Random
from typing import Final
from uuid import UUID

from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.links import Link
from aioidem._engine.requests import Outstanding, RequestKind
from aioidem._log import LogLine
from aioidem._protocol.produce import LeaderNode, PartitionAnswer, ProduceAnswer
from aioidem.errors import ProtocolError

from .comparing import unequal
from .produce_bench import IDS, Row
from .produce_losses import LossBench, state_of

__all__ = ["AnswerBench"]

_WITH_WINDOW: Final = 14
"""The first version of Produce in whose answers leaders name how many batches they retain."""
_BY_NAME: Final = 12
"""The last version of Produce that names topics; later ones have their ids."""
_STRANGE_ID: Final = UUID(int=99)
_MOST_RETAINED: Final = 1000
"""The largest number of retained batches that is believed."""

_AGAIN: Final = (19, 7, 6)
"""NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT, NOT_LEADER_OR_FOLLOWER: the batch is sent again."""
_FOR_GOOD: Final = (10, 29, 87)
"""MESSAGE_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED, INVALID_RECORD: it is not."""
_OF_NUMBERS: Final = (45, 46, 59)
"""OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID."""
_UNSUPPORTED: Final = 35
"""UNSUPPORTED_VERSION: the batch is sent again with v13, if this was v14."""
_FENCED: Final = 47
"""INVALID_PRODUCER_EPOCH: another client uses the producer id."""
_TOO_LARGE: Final = 10
_OUT_OF_ORDER: Final = 45
_TIMED_OUT: Final = 7
_NOT_LEADER: Final = 6

_Told = tuple[Row | None, Batch, PartitionAnswer]
"""A partition (None if its topic was deleted since), its batch, and what the leader says of it."""


class AnswerBench(LossBench):
    """The bench of Produce requests, and what follows from answers."""

    def __init__(self, dice: Random) -> None:
        super().__init__(dice)
        self._offset = 0
        """The base offset that the last answer has named."""
        self._error: ProtocolError | None = None
        """What the engine said of the last answer as a whole."""

    # -- making answers ----------------------------------------------------------------------------

    def _answer(self) -> str | None:
        """Answer the oldest request of a connection, and compare what that changes."""
        owed = [
            (link, request)
            for link in self._links()
            for request in link.outstanding.values()
            if request.kind is RequestKind.PRODUCE
        ]
        if not owed:
            return None
        link = self._dice.choice(owed)[0]
        request = next(request for each, request in owed if each is link)
        if self._kind == "acks=0":
            return self._written(link, request)
        self._parts.requests.answered(link.link_id, request.token, self._now)
        return self._compare_answer(link, request)

    def _part_of(self, request: Outstanding, row: Row | None, batch: Batch) -> PartitionAnswer:
        """Return what a leader says of a batch."""
        dice = self._dice
        name = next(name for name, (_, each) in request.entries.items() if each is batch)
        topic_id = IDS[name[0]] if request.version > _BY_NAME else None
        codes = [0, 0, 0, *_AGAIN]
        if not batch.in_doubt:
            codes += _FOR_GOOD if dice.random() < 0.4 else ()
            codes += (*_OF_NUMBERS, _FENCED) if not self._idempotent else ()
        if request.version >= _WITH_WINDOW or not batch.in_doubt:
            codes.append(_UNSUPPORTED)
        if self._idempotent and dice.random() < 0.1:
            codes.append(_FENCED)
        code = dice.choice(codes)
        if row is not None and self._idempotent and not code:
            unresolved = row.state.batches.unresolved
            below = unresolved[: unresolved.index(batch)] if batch in unresolved else []
            if any(not each.in_doubt for each in below):
                code = _OUT_OF_ORDER  # a leader takes no batch before those that precede it
        self._offset += 100
        stored = self._offset if not code or (code == _NOT_LEADER and dice.random() < 0.5) else -1
        leader, epoch = dice.choice(((-1, -1), (0, 50), (1, 50), (2, 60), (5, 70)))
        errors = ((0, "bad"),) if code == 87 else ()
        return PartitionAnswer(
            None if topic_id is not None else name[0],
            topic_id,
            name[1],
            code,
            stored,
            retained=dice.choice((None, 2, 7, 20, 0, 5000)),
            leader_id=-1 if not code else leader,
            leader_epoch=-1 if not code else epoch,
            record_errors=errors,
        )

    def _compare_answer(self, link: Link, request: Outstanding) -> str | None:
        """Make an answer, which may leave batches out or name others, and judge its effects."""
        dice = self._dice
        rows = {row.state: row for row in self._rows}
        parts: list[PartitionAnswer] = []
        left: list[Batch] = []
        told: list[_Told] = []
        for state, batch in request.entries.values():
            if dice.random() < 0.1:
                left.append(batch)
                continue
            part = self._part_of(request, rows.get(state), batch)
            parts.append(part)
            told.append((rows.get(state), batch, part))
        odd = 0
        while parts and dice.random() < 0.1:
            odd += 1
            other = parts[0]._replace(partition=9)
            strange = parts[0]._replace(topic=None, topic_id=_STRANGE_ID)
            parts.append(dice.choice((parts[0], other, strange)))
        leaders = tuple(LeaderNode(n, f"b{n}", 9092) for n in dice.sample((2, 5, 6), 2))
        answer = ProduceAnswer(tuple(parts), dice.choice((0, 0, 500)), dice.choice(((), leaders)))
        return self._judge(link, request, answer, told, left) or self._end(link, odd)

    def _judge(
        self,
        link: Link,
        request: Outstanding,
        answer: ProduceAnswer,
        told: list[_Told],
        left: list[Batch],
    ) -> str | None:
        """Handle an answer, and compare all that it changes.

        Args:
            link: the connection on which the answer comes.
            request: the request.
            answer: the answer.
            told: what the answer says of the request's batches.
            left: the batches that it leaves out.
        """
        parts = self._parts
        ended = {batch for _, batch, _ in told if batch.settled} | {b for b in left if b.settled}
        doubted = {batch for _, batch, _ in told if batch.in_doubt}
        named = {part.leader_id for part in answer.partitions}
        known = set(parts.cluster.brokers) | {
            each.node_id for each in answer.leaders if each.node_id in named
        }
        due = [self._expect(link, request, each, known, ended, doubted) for each in told]
        whole = self._expect_whole(link, request, answer, told, left)
        parts.metadata.wanted = self._part.refused = False
        before = parts.identity.current
        self._error = self._part.on_answer(link, request, answer, self._now)
        states = [(state_of(b), self._leader(row) if row else None) for row, b, _ in told]
        fenced = any(part.error_code == _FENCED for _, _, part in told) and self._idempotent
        if not fenced and states != due:
            return f"batches and leaders are {states} after {answer}, not {due}"
        omitted = [state_of(batch) for batch in left if batch not in ended]
        if any(each != "in doubt" for each in omitted) and not fenced:
            return f"batches that the answer leaves out are {omitted}, not in doubt"
        facts = {
            "a batch was refused": self._part.refused,
            "metadata is wanted": parts.metadata.wanted,
            "throttled until": link.throttled_until,
            "brokers": set(parts.cluster.brokers),
            "brokers without a node": known - set(parts.connections.nodes),
            "state of v14": link.discovery.state.name,
        }
        expected = {"brokers": known, "brokers without a node": set[int](), **whole}
        wrong = unequal({name: (facts[name], is_due) for name, is_due in expected.items()})
        if wrong is not None:
            return f"{wrong} after {answer}"
        shared = [b for _, b, part in told if part.error_code == _FENCED and b not in ended]
        return self._wrong_id(before, shared if self._idempotent else [])

    def _expect_whole(
        self,
        link: Link,
        request: Outstanding,
        answer: ProduceAnswer,
        told: list[_Told],
        left: list[Batch],
    ) -> dict[str, object]:
        """Return what follows from an answer besides what becomes of its batches."""
        codes = {part.error_code for _, _, part in told}
        until = link.throttled_until
        if answer.throttle_ms:
            seconds = answer.throttle_ms / 1000.0
            until = max(until, self._now + seconds)
            self._throttles.setdefault(link.node_id, []).append(seconds)
        due: dict[str, object] = {
            "a batch was refused": bool(left) or any(codes),
            "metadata is wanted": bool(left) or _NOT_LEADER in codes,
            "throttled until": until,
        }
        if link.discovery.speaks and request.version >= _WITH_WINDOW:
            refuses = any(part.error_code == _UNSUPPORTED for part in answer.partitions)
            due["state of v14"] = "HELD_BACK" if refuses else "HEARD"
        return due

    def _wrong_id(self, before: ProducerIdentity | None, shared: list[Batch]) -> str | None:
        """Check that a producer id is given up, and that it is told, if another client uses it.

        Args:
            before: the producer's identity until now.
            shared: the batches that were refused for a newer epoch, which nobody else may raise.
        """
        gone = before is not None and any(
            batch.identity is not None and batch.identity.producer_id == before.producer_id
            for batch in shared
        )
        events = [event.line for event in self._parts.outcomes.take_events()]
        now = self._parts.identity.current
        pairs: dict[str, tuple[object, object]] = {
            "an operator is told of a shared id": (LogLine.PRODUCER_ID_SHARED in events, gone),
            "there is no producer id": (now is None, gone or before is None),
        }
        wrong = unequal(pairs)
        return None if wrong is None else f"{wrong}; of {before}, {len(shared)} batches were fenced"

    def _expect(
        self,
        link: Link,
        request: Outstanding,
        told: _Told,
        known: set[int],
        ended: set[Batch],
        doubted: set[Batch],
    ) -> tuple[str, tuple[int, int] | None]:
        """Return what becomes of a batch, and who leads its partition then.

        Args:
            link: the connection on which the answer comes.
            request: the request.
            told: the partition, the batch, and what its leader says of it.
            known: the brokers whose addresses are known.
            ended: the batches that had their outcome before.
            doubted: the batches that were in doubt before.
        """
        row, batch, part = told
        code, size = part.error_code, len(batch.data)
        leads = None if row is None else self._leader(row)
        if row is not None and not code:
            key = link.link_id, row.topic
            self._largest[key] = max(self._largest.get(key, 0), size)
            self._learn_window(row, link, part)
            if batch not in ended:
                row.leaderless_since = None
        elif row is not None and leads is not None:
            shown = row.topic in self._parts.cluster.topics
            if shown and part.leader_epoch > leads[1] and part.leader_id in known:
                leads = part.leader_id, part.leader_epoch
            if code == _TOO_LARGE:
                self._refuse_size(row.topic, link, size, certain=batch not in doubted)
        if batch in ended:
            return state_of(batch), leads
        again = code in _AGAIN or (code == _UNSUPPORTED and request.version >= _WITH_WINDOW)
        again |= code in (_OUT_OF_ORDER, _FENCED) and self._idempotent
        # An offset with NOT_LEADER_OR_FOLLOWER says that the batch was appended; without trust in
        # offsets it always may have been.
        distrusts = self._kind == "no offsets trusted"
        stored = code == _TIMED_OUT
        stored |= code == _NOT_LEADER and (part.base_offset >= 0 or distrusts)
        if not code:
            return "acked", leads
        if again:
            return "in doubt" if stored or batch in doubted else "waits", leads
        # DUPLICATE_SEQUENCE_NUMBER says that it is stored, even to a producer without numbers.
        return "unknown" if code == 46 or batch in doubted else "not written", leads

    def _learn_window(self, row: Row, link: Link, part: PartitionAnswer) -> None:
        """Note the window that a leader names, if the partition still goes to this leader."""
        leader, epoch = self._leader(row)
        route = row.state.leadership.route
        same = route is not None and leader in (route.leader_id, -1)
        if route is not None and same and epoch == route.leader_epoch:
            said = part.retained
            if said is not None and link.node_id in self._memory:
                said = min(said, self._memory[link.node_id])
            row.said = 5 if said is None else max(1, min(said, _MOST_RETAINED))

    def _refuse_size(self, topic: str, link: Link, size: int, *, certain: bool) -> None:
        """Note that a batch was too large, which counts if it is certainly not stored."""
        key = link.link_id, topic
        if self._largest.get(key, 0) >= size:
            self._largest[key] = 0
        if certain:
            self._ceilings[topic] = min(self._ceilings.get(topic, size), max(1, size // 2))

    def _end(self, link: Link, odd: int) -> str | None:
        """Check that an answer which names other partitions is told, and ends the connection.

        Args:
            link: the connection on which the answer came.
            odd: how many partitions the answer names that it should not, or names twice.
        """
        text = str(self._error)
        if (self._error is None) is bool(odd) or (odd and f"names {odd} partition(s)" not in text):
            return f"the answer leads to the error {text}, and names {odd} partitions too many"
        if odd:
            self._parts.lose(link, self._now, self._error)
        return None
