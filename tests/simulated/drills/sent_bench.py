"""The bench of the Sender: a Sender, and an engine that does what the drill says.

`Bench.foresee` and the methods below it return the rows that follow from a request on a connection,
and from the end of one.
"""

from __future__ import annotations

import logging
import math
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.incidents import Event
from aioidem._engine.record import Outcome
from aioidem._engine.settlement import Settlement
from aioidem._log import LogLine
from aioidem._producer.sender import Sender, _produce_reader
from aioidem._protocol.answer_limits import answer_limit, produce_answer_limit
from aioidem._protocol.produce import encode_produce_request
from aioidem._protocol.versions import SPOKEN, ApiKey
from aioidem.structs import DeliveryStatus

from .sent_parts import Asked, Heard, Noting, Row, UserRecord, Wire
from .sent_words import gist_of, span_of

__all__ = ["CLIENT", "MOST_BYTES", "SETUP_SECONDS", "Bench"]

CLIENT: Final = "me"
SETUP_SECONDS: Final = 3.0
MOST_BYTES: Final = 1 << 20
"""The most bytes of an answer (`max_frame_bytes`)."""


@cache
def _config(sasl: bool) -> ProducerConfig:
    secret: Any = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": "me",
        "sasl_password": "secret",
    }
    return ProducerConfig.build(
        "b1:9092",
        client_id=CLIENT,
        max_frame_bytes=MOST_BYTES,
        connection_setup_timeout=SETUP_SECONDS,
        **(secret if sasl else {}),
    )


class Bench:
    """A Sender, what stands in for its surroundings, and the rows of all that happens there.

    Attributes:
        log: the rows.
        now, wall: the Sender's clock and the time of day, in seconds.
        wires: the connections that are open, by id.
        steps: what the next poll of the engine returns.
        to_settle: the outcomes that the engine has with its next poll or answer.
        poll_error: what the next poll raises.
        misfit: what the engine says of the next answer: it does not fit the request.
        merge: what the engine merges the next Metadata answer with.
        expected: when the watch expects the loop to run.
        dispatched: the batches that an observer is to be told of.
        lines: what the watch has to tell the operator.
        wakes: whether the Sender's loop must be woken by what has happened.
        on_time, on_poll: called when time passes in a callback, and in each poll.
        recorder: the flight recorder in front of the engine; None if there is none.
    """

    def __init__(self, dice: Random) -> None:
        _produce_reader.cache_clear()  # as in a new process
        self.dice, self.log = dice, list[Row]()
        self.now, self.wall = 100.0, 1000.5
        self.on_time: Callable[[float], None] | None = None
        self.wires: dict[int, Wire] = {}
        self.steps: list[steps.Step] = []
        self.to_settle: list[Settlement] = []
        self._settled: list[Settlement] = []
        self.poll_error: BaseException | None = None
        self.on_poll: Callable[[], None] | None = None
        self.misfit: errors.ProtocolError | None = None
        self.merge: object = None
        self.expected: float | None = None
        self.dispatched: list[object] = []
        self.lines: list[Event] = []
        self.wakes = False
        self.sasl, self.observed = dice.random() < 0.3, dice.random() < 0.5
        self.connector: Any = object()
        self.unseen: Any = Noting("unseen", self.log, due_at=None)
        self._make(recorded=dice.random() < 0.5)

    def _make(self, *, recorded: bool) -> None:
        log = self.log
        self.watch: Any = Noting("watch", log, due_at=math.inf, wakes_at=None, take=self._take)
        self.watch.__dict__["expected_at"] = lambda: self.expected
        self.meters: Any = Noting("meters", log, now=7.0, turns=[], nodes=defaultdict(object))
        for name in ("refused", "closed"):
            self.meters.__dict__[name] = Noting(name, log)
        self.outcomes: Any = Noting("outcomes", log, has_events=False, take_settled=self._settle)
        drafts = SimpleNamespace(at_once=0)
        engine: Any = Noting("engine", log, poll=self._poll, close=self._close)
        engine.on_link_lost = self._on_link_lost
        engine.on_answer, engine.take_dispatched = self._on_answer, self._take_dispatched
        # If there is a flight recorder in front of the engine, it must be told everything.
        bypassed: Any = Noting("bypassed", log)
        self.core: Any = bypassed if recorded else engine
        self.core.__dict__.update(
            outcomes=self.outcomes,
            accumulator=SimpleNamespace(drafts=drafts, assigning=False),
            watch=self.watch,
            meters=self.meters,
            connections=SimpleNamespace(links={}),
            produce=self.core if recorded else engine,
            merge_of=lambda step, _: self.merge if type(step) is steps.FetchMetadata else None,
            wake_at=None,
        )
        self.recorder: Any = engine if recorded else None
        self.config = _config(self.sasl)
        observer: Any = Noting("observer", log) if self.observed else None
        self.sender = Sender(
            self.core, self.config, self.connector, lambda: self.wall, observer, self.recorder
        )
        self.drafts_at_once = drafts.at_once

    # -- the engine

    def _poll(self, now: float, wall_ms: float | None = None) -> list[steps.Step]:
        self.log.append(("engine.poll", now, wall_ms))
        if self.poll_error is not None:
            raise self.poll_error
        if self.on_poll is not None:
            self.on_poll()
        return self._take_steps()

    def _close(self, now: float) -> list[steps.Step]:
        self.log.append(("engine.close", now))
        return self._take_steps()

    def _take_steps(self) -> list[steps.Step]:
        taken, self.steps = self.steps, []
        self.settle_now()
        return taken

    def settle_now(self) -> None:
        """Let the engine have the outcomes that it should have by now."""
        self._settled += self.to_settle
        self.to_settle.clear()

    def _on_answer(
        self, step: steps.Request, answer: Any, now: float, merge: Any = None
    ) -> errors.ProtocolError | None:
        self.log.append(("engine.on_answer", step, gist_of(answer), now, merge))
        self.settle_now()
        misfit, self.misfit = self.misfit, None
        return misfit

    def _on_link_lost(self, *facts: Any) -> None:
        self.log.append(("engine.on_link_lost", *facts[:-1], sorted(facts[-1])))

    def _settle(self) -> list[Settlement]:
        taken, self._settled = self._settled, []
        return taken

    def _take_dispatched(self) -> list[object]:
        taken, self.dispatched = self.dispatched, []
        return taken

    def _take(self, now: float) -> list[Event]:
        self.log.append(("watch.take", now))
        taken, self.lines = self.lines, []
        self.outcomes.has_events = False
        return taken

    # -- the user

    def pass_time(self, seconds: float) -> None:
        """Let time pass in which nothing else runs."""
        if self.on_time is not None:
            self.on_time(seconds)
        self.now += seconds

    def deliver(self) -> None:
        """Have the Sender deliver outcomes, as a callback may do without knowing."""
        self.sender.deliver()

    def settlement(self, names: list[str]) -> Settlement:
        """Return an outcome of some records."""
        records: Any = [UserRecord(self, name) for name in names]
        return Settlement(Outcome("t", 3, DeliveryStatus.ACKED), records)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what is logged."""
        logger, heard = logging.getLogger("aioidem"), Heard(self.log)
        before = logger.level, logger.propagate
        logger.addHandler(heard)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(heard)
            logger.setLevel(before[0])
            logger.propagate = before[1]

    # -- what a request leads to

    def foresee(self, step: Any, now: float) -> list[Row]:
        """Return the rows of a request: it is written or withdrawn; none if it comes too late."""
        wire = self.wires.get(step.link_id)
        if wire is None:
            return []
        api, lowest, highest = span_of(step)
        theirs = wire.versions.offered.get(api, (0, -1))
        version = min(SPOKEN[api][1], theirs[1], highest)
        if version < max(SPOKEN[api][0], theirs[0], lowest):
            self.wakes = True
            return [("engine.on_unsupported", step, errors.IncompatibleBrokerVersion, now)]
        wire.foreseen += 1
        asked = Asked(step, version, wire.foreseen, refused=wire.ended)
        wire.asked.append(asked)
        if wire.ended:
            return []
        if api is not ApiKey.PRODUCE:
            head = struct.pack(">hhih2s", api, version, asked.number, len(CLIENT), CLIENT.encode())
            return [("write", wire.link_id, head, True, answer_limit(api, MOST_BYTES))]
        frame = encode_produce_request(
            step.version,
            correlation_id=asked.number,
            client_id=CLIENT,
            transactional_id=step.transactional_id,
            acks=step.acks,
            timeout_ms=step.timeout_ms,
            topics=step.topics,
        )
        parts = sum(len(topic.partitions) for topic in step.topics)
        limit = produce_answer_limit(parts, step.records, MOST_BYTES) if step.acks else None
        return [("write", wire.link_id, frame, step.acks != 0, limit)]

    def foresee_progress(self, wire: Wire, now: float, *, read: bool = False) -> list[Row]:
        """Return the rows of bytes that have moved on a connection, of which some may be read."""
        rows: list[Row] = []
        if read or wire.sends_oldest:
            rows.append(("engine.on_progress", wire.link_id, now))
        for asked in [each for each in wire.asked if not each.answered and not each.refused]:
            if asked.number not in wire.queued:
                wire.asked.remove(asked)
                token = asked.step.token
                rows.append(("engine.on_written_unanswered", wire.link_id, token, now))
                self.wakes = True
        return rows

    def foresee_loss(self, link_id: int, error: Any, now: float, unwritten: list[int]) -> list[Row]:
        """Return the rows of the end of a connection, or of one that did not open."""
        self.wakes = True
        rows: list[Row] = []
        if error is not None:
            text = f"{CLIENT}: connection {link_id}: {error} [{LogLine.CONNECTION_ENDED.value}]"
            rows.append(("line", logging.DEBUG, text, "once", CLIENT, None))
        told = ("engine.on_link_lost", link_id, error, now, sorted(unwritten))
        return [*rows, told, ("watch.hurry",)]
