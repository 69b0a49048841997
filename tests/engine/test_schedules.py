"""Random schedules against a small broker: whatever happens, each record's outcome is true.

`Broker` appends by Kafka's rules (a cache of the last N batches, epochs, any first sequence for a
producer that it does not know) and shares no code with the engine. A schedule draws what
becomes of each request: it is answered, refused, appended but answered ambiguously, lost with its
connection before or after the append, or left behind as a zombie that is appended later. Then the
faults end, and every record must get its outcome.

An ACKED record is in the log, at its offset if it has one; no record is there twice; a NOT_WRITTEN
record is absent; the log has call order; and every counter returns to zero. `pytest -k seed7`
replays a seed.
"""

from __future__ import annotations

import random
from collections import deque

import pytest

from .driver import (
    ACKED,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    KAFKA_STORAGE_ERROR,
    NONE,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER,
    NOT_WRITTEN,
    OUT_OF_ORDER,
    PENDING,
    REQUEST_TIMED_OUT,
    LinkEnd,
    Request,
    Rig,
    Sent,
    T,
)

SEEDS = range(160)


class Known:
    """What a broker knows of one producer id in one partition."""

    def __init__(self, epoch: int, retain: int) -> None:
        self.epoch = epoch
        self.next = 0
        self.cache: deque[tuple[int, int]] = deque(maxlen=retain)


class Broker:
    """A broker: the logs of two partitions, and Kafka's rules for appending to them."""

    def __init__(self, retain: int) -> None:
        self.retain = retain
        self.logs: dict[int, list[bytes | None]] = {0: [], 1: []}
        self.known: dict[tuple[int, int], Known] = {}

    def append(self, part: Sent) -> tuple[int, int]:
        """Append a batch if the rules allow it, and return (error code, base offset)."""
        producer, epoch = part.identity
        known = self.known.get((part.partition, producer))
        if known is None:
            known = self.known[part.partition, producer] = Known(epoch, self.retain)
            known.next = part.sequence
        if epoch < known.epoch:
            return INVALID_PRODUCER_EPOCH, -1
        if epoch > known.epoch:
            if part.sequence != 0:
                return OUT_OF_ORDER, -1
            known.epoch, known.next = epoch, 0
            known.cache.clear()
        for sequence, offset in known.cache:
            if sequence == part.sequence:
                return NONE, offset
        if part.sequence != known.next:
            return OUT_OF_ORDER, -1
        log = self.logs[part.partition]
        offset = len(log)
        log.extend(part.values)
        known.cache.append((part.sequence, offset))
        known.next = (part.sequence + part.batch.count) % 2**31
        return NONE, offset

    def restart_cleanly(self) -> None:
        """Restart as a real broker does: its snapshot keeps one batch per producer."""
        for known in self.known.values():
            while len(known.cache) > 1:
                known.cache.popleft()


class Schedule:
    """One random schedule: a rig, a broker, and the faults between them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.retain = pick([5, 5, 20])
        self.rig = Rig(
            partitions=2,
            version=14,
            seed=seed,
            batch_size=pick([200, 400, 1000]),
            linger=pick([0.0, 0.0, 0.05]),
            max_in_flight_requests_per_connection=pick([1, 2, 5, 25]),
            late_sealing=pick([True, False]),
            delivery_timeout=pick([8.0, 20.0, 60.0]),
            request_timeout=5.0,
        ).start()
        self.broker = Broker(self.retain)
        self.zombies: list[Request] = []
        self.faulty = pick([0.1, 0.3, 0.6])
        if pick([True, False]):
            # Some schedules start close to the wrap of the sequences.
            for partition in (0, 1):
                self.rig.send(partition=partition)
                self.serve_all()
                state = self.rig.state(T, partition)
                if not state.batches.unresolved:
                    jump = 2**31 - pick([1, 2, 3, 4])
                    self.rig.jump(jump, partition=partition)
                    for (index, _), known in self.broker.known.items():
                        if index == partition:
                            known.next = jump
                            known.cache.clear()

    def answer(self, request: Request, codes: list[tuple[int, int]]) -> None:
        entries = [
            self.rig.entry(
                request,
                part,
                code,
                offset,
                retained=self.retain if code == NONE and request.version >= 14 else None,
            )
            for part, (code, offset) in zip(request.parts, codes, strict=True)
        ]
        self.rig.answer(request, entries)

    def serve(self, request: Request) -> None:
        self.answer(request, [self.broker.append(part) for part in request.parts])

    def serve_all(self) -> None:
        for _ in range(2000):
            self.rig.poll()
            if not self.rig.outstanding():
                return
            self.serve(self.rig.outstanding()[0])
        raise AssertionError("the engine sends requests for ever")

    def serve_badly(self, request: Request) -> None:
        codes: list[tuple[int, int]] = []
        for part in request.parts:
            kind = self.random.random()
            if kind < 0.3:
                codes.append((self.random.choice([NOT_LEADER, NOT_ENOUGH_REPLICAS]), -1))
            elif kind < 0.4:
                codes.append((INVALID_RECORD, -1))
            elif kind < 0.5:
                # A storage error is answered, and nothing is written.
                codes.append((KAFKA_STORAGE_ERROR, -1))
            else:
                code, offset = self.broker.append(part)
                if code == NONE and kind < 0.9:
                    code = self.random.choice(
                        [REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_LEADER]
                    )
                    offset = offset if code == NOT_LEADER else -1
                codes.append((code, offset))
        self.answer(request, codes)

    def cut(self, end: LinkEnd) -> None:
        """Lose a connection; the broker handles some of its requests now, others later or never."""
        owed = [request for request in self.rig.outstanding() if request.link is end]
        handled = self.random.randint(0, len(owed))
        for request in owed[:handled]:
            for part in request.parts:
                self.broker.append(part)
        left = owed[handled:]
        unwritten: list[Request] = []
        if left and self.random.random() < 0.5:
            self.zombies.extend(left)
        elif left and self.random.random() < 0.5:
            unwritten = left[self.random.randint(0, len(left)) :]
        self.rig.lose(end, unwritten=unwritten)

    def wake_a_zombie(self) -> None:
        for part in self.zombies.pop(0).parts:
            self.broker.append(part)

    def step(self) -> None:
        rig, draw = self.rig, self.random.random()
        outstanding = rig.outstanding()
        if draw < 0.3:
            rig.send(self.random.randint(1, 4), partition=self.random.randint(0, 1))
        elif draw < 0.4:
            rig.tick(self.random.choice([0.01, 0.1, 0.5, 2.0]))
        elif draw < 0.45 and self.zombies:
            self.wake_a_zombie()
        elif outstanding:
            request = outstanding[0]
            if self.random.random() > self.faulty:
                self.serve(request)
            elif self.random.random() < 0.5:
                self.serve_badly(request)
            elif self.random.random() < 0.8:
                self.cut(request.link)
            else:
                self.broker.restart_cleanly()
                self.cut(request.link)
        else:
            rig.tick(0.05)

    def run(self) -> None:
        for _ in range(self.random.choice([20, 60, 120])):
            self.step()
        # Requests of closed connections stay queued in the broker for a while, but not for ever.
        while self.zombies:
            self.wake_a_zombie()
        rig = self.rig
        until = rig.now + 200.0
        while PENDING in rig.statuses:
            assert rig.now < until, "a record has no outcome in time"
            self.serve_all()
            at = rig.core.wake_at
            if PENDING in rig.statuses:
                assert at is not None, "the engine does not ask to be woken while records wait"
                rig.tick(max(at - rig.now, 1e-6))
        fresh = rig.send(2, partition=0) + rig.send(2, partition=1)
        for _ in range(100):
            self.serve_all()
            rig.tick(0.1)
        assert [o.status for o in fresh] == [ACKED] * 4, "the producer does not recover"
        rig.assert_drained()
        self.check()

    def check(self) -> None:
        rig = self.rig
        for partition, log in self.broker.logs.items():
            numbers = [int(value[:8]) for value in log if value is not None]
            assert len(numbers) == len(set(numbers)), f"a record is in the log twice: {numbers}"
            assert numbers == sorted(numbers), f"the log is out of order: {numbers}"
            present = set(numbers)
            for outcome in rig.outcomes:
                if outcome.settlement is None or outcome.settlement.partition != partition:
                    continue
                if outcome.status is ACKED:
                    assert outcome.number in present, (
                        f"an acknowledged record is not in the log: {outcome}"
                    )
                    if outcome.offset >= 0:
                        assert numbers[outcome.offset] == outcome.number
                elif outcome.status is NOT_WRITTEN:
                    assert outcome.number not in present, (
                        f"a record that ended NOT_WRITTEN is in the log: {outcome}"
                    )


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"seed{seed}")
def test_whatever_happens_the_verdicts_are_true(seed: int) -> None:
    """ACKED records are stored once, NOT_WRITTEN ones are absent, and order is kept."""
    Schedule(seed).run()
