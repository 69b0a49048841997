"""What the log says about records that ended UNKNOWN, in simulated worlds, which know the truth.

`python -m tests.simulated.resolving --incidents 1000` (`make resolve-soak`) runs seeds of the
simulation until that many batches have ended UNKNOWN. Each of them is looked for several times: at
once, while the faults go on, and after the end of the producer, when every request that a broker
still held has been served. `LogSearch` and `judge` are the product's; the reading between them is
done here, page by page as time passes, and is begun anew if the leader epoch changes.

At the end of the run every verdict is compared with the logs of all clusters, those of deleted
topics and those that retention removed included:

- WRITTEN at an offset: when the verdict was given, that record was there, below the high watermark.
- ABSENT: no copy is in any log at the end.
- UNDECIDED: the last look at a batch, when no fault is left, has such a verdict only if a part of
  the log is gone, brokers may have forgotten the producer, or it has not written there again.

`--mutants` breaks the rule in one place at a time. A seed shows a wrong verdict then; or, where
that needs more luck than a thousand incidents have, a test of the rule as a function fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, Final

from aioidem._admin import log_reading
from aioidem._broker.partition import Partition
from aioidem._engine import incident_of as incident_module
from aioidem._engine import log_search
from aioidem._engine.log_search import LogFacts, LoggedBatch, LogSearch, judge, logged_batch
from aioidem._engine.settlement import Settlement
from aioidem._protocol.read_back import read_back_request
from aioidem._records import read_batches
from aioidem._testing.wire_frames import batch_values
from aioidem.errors import KafkaError
from aioidem.incident import Incident
from aioidem.resolution import Resolution, UndecidedReason, Verdict
from aioidem.structs import DeliveryStatus
from aioidem.testing import ValueId, parse_value

from .other_logs import complaints_about_other_logs
from .schedule import Schedule, draw
from .second_verdict import Reading, complaint_about
from .sim_records import SimRecord
from .soak import quiet
from .swarm import draw_swarm
from .world import EXPIRATION, World

__all__ = ["MUTANTS", "Found", "Tally", "caught", "main", "resolve_seed"]

# When a batch is looked for, in seconds after it has ended; the last time is after the whole run.
_LOOKS: Final = (0.0, 0.3, 3.0, 30.0, 390.0)
_PAGE_BYTES: Final = 2000
_TRIES: Final = 50
# The seeds that are run anew for each mutant of the reading.
_LIVE: Final = 700
_TABLE: Final = (
    "tests/engine/test_log_search.py",
    "tests/engine/test_incident_of.py",
    "tests/producer/test_resolve.py::test_a_new_leader_has_the_same_answer",
)

GONE: Final = frozenset(
    {
        UndecidedReason.NOT_FENCED,  # the producer has not written to the partition again
        UndecidedReason.FORGOTTEN,
        UndecidedReason.RETENTION,
        UndecidedReason.TRUNCATED,
        UndecidedReason.TOPIC_GONE,
        UndecidedReason.TIMED_OUT,  # the partition has no leader for good
        UndecidedReason.RENUMBERED,
        UndecidedReason.OTHER_BYTES,  # another client has the same producer id
        UndecidedReason.NO_TOPIC_ID,
    }
)
"""The reasons for which a batch may be UNDECIDED when no fault is left."""


@dataclass(frozen=True, slots=True)
class Found:
    """One look at the log for one batch, and the verdict.

    Attributes:
        seed: the seed of the schedule.
        incident: the batch.
        values: the values of its records.
        resolution: the verdict.
        begin: the first offset that was read; None if the log could not be read.
        read: the batches that were read.
        facts: when and where.
        places: the offsets at which the batch was in the log then, below the high watermark.
        last: whether no fault was left.
    """

    seed: int
    incident: Incident
    values: tuple[ValueId, ...]
    resolution: Resolution
    begin: int | None
    read: tuple[LoggedBatch, ...]
    facts: LogFacts
    places: frozenset[int]
    last: bool

    def judge_again(self) -> Resolution:
        """Return the verdict about the same bytes, for a rule that was changed meanwhile."""
        search = None if self.begin is None else LogSearch(self.incident, self.begin)
        if search is not None:
            search.read(self.read)
        return judge(self.incident, search, self.facts)

    def wrong(self, resolution: Resolution, stored: bool) -> str | None:
        """Return what is wrong with a verdict; None if it is right.

        Args:
            resolution: the verdict.
            stored: whether a copy of the batch is in a log at the end.
        """
        match resolution.verdict:
            case Verdict.WRITTEN if resolution.offset not in self.places:
                return f"it was at {sorted(self.places) or 'no offset'} then"
            case Verdict.ABSENT if stored:
                return "a copy is in the log at the end"
        if self.last and resolution.reason is not None and resolution.reason not in GONE:
            return "nothing keeps the log from being read"
        return complaint_about(
            resolution, self.incident, Reading(self.begin, self.read, self.facts)
        )


@dataclass
class Tally:
    """The verdicts of some seeds."""

    seeds: int = 0
    incidents: int = 0
    looks: Counter[str] = field(default_factory=Counter)
    at_the_end: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    kept: list[tuple[Found, bool]] = field(default_factory=list)

    def add(self, world: ResolvingWorld, *, keep: bool = False) -> None:
        """Count the verdicts of a world that has ended, and judge them."""
        self.seeds += 1
        self.incidents += len(world.incidents)
        truth = Counter(parse_value(record.value) for record in world.log())
        dice = random.Random(f"other logs {world.schedule.seed}")
        for found in world.found:
            stored = any(truth[value] for value in found.values)
            resolution = found.resolution
            reason = "" if resolution.reason is None else f" {resolution.reason.name}"
            self.looks[resolution.verdict.name] += 1
            if found.last:
                self.at_the_end[f"{resolution.verdict.name}{reason}"] += 1
            complaint = found.wrong(resolution, stored)
            if complaint is not None:
                self.wrong.append(f"seed {found.seed}: {complaint}: {resolution}")
            reading = Reading(found.begin, found.read, found.facts)
            for other in complaints_about_other_logs(found.incident, reading, dice):
                self.wrong.append(f"seed {found.seed}: another log: {other}")
            if keep:
                self.kept.append((found, stored))


class ResolvingWorld(World):
    """A world in which each batch that ends UNKNOWN is looked for in the log."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.found: list[Found] = []
        self.incidents: set[Incident] = set()
        self._times = random.Random(schedule.seed ^ 0x106)

    def note_settled(self, settlements: Sequence[Settlement]) -> None:
        """Note outcomes as usual, and look for the batches that ended UNKNOWN."""
        super().note_settled(settlements)
        for settlement in settlements:
            error = settlement.outcome.error
            if settlement.outcome.status is not DeliveryStatus.UNKNOWN:
                continue
            if not isinstance(error, KafkaError) or error.incident is None:
                continue
            values = tuple(
                each.row.value for each in settlement.records if isinstance(each, SimRecord)
            )
            if error.incident in self.incidents:
                continue
            self.incidents.add(error.incident)
            for after in _LOOKS:
                last = after == _LOOKS[-1]
                when = self.now + after * (1.0 if last else self._times.uniform(0.5, 1.5))
                self.at(when, _Look(self, error.incident, values, last=last).begin)

    def later(self, most: float, act: Callable[[], None]) -> None:
        """Do something after a random time of at most so many seconds."""
        self.at(self.now + self._times.uniform(0.0, most), act)


class _Look:
    """One search for a batch, whose pages are read as time passes."""

    def __init__(
        self, world: ResolvingWorld, incident: Incident, values: tuple[ValueId, ...], *, last: bool
    ) -> None:
        self._world = world
        self._incident = incident
        self._values = values
        self._last = last
        self._tries = 0
        self._cluster = world.cluster
        self._search: LogSearch | None = None
        self._epoch = -1
        self._offset = self._target = self._log_start = 0
        self._begin: int | None = None
        self._read: list[LoggedBatch] = []

    def begin(self) -> None:
        """Begin to read, or say why the log cannot be read."""
        world, incident = self._world, self._incident
        self._cluster = world.cluster
        topic = self._cluster.topics.get(incident.topic)
        if topic is None:
            return self._end(UndecidedReason.TOPIC_GONE)
        if not same_topic(topic, incident) or incident.partition >= len(topic.partitions):
            return self._end(UndecidedReason.TOPIC_GONE)
        partition = topic.partitions[incident.partition]
        log = self._log_of(partition)
        if log is None:
            return self._again()
        after = incident.after
        self._epoch, self._log_start = partition.leader_epoch, log.start_offset
        self._offset = log.start_offset if after is None else max(after.offset, log.start_offset)
        self._target = end_of(partition)
        self._begin, self._read = self._offset, []
        self._search = LogSearch(incident, self._offset)
        if after is not None and after.offset > log.end_offset:
            return self._end(None)
        if after is not None and self._target <= after.offset:
            return self._again()
        return self._read_on()

    def _log_of(self, partition: Partition) -> Any:
        leader = partition.leader_replica
        return None if leader is None else leader.log

    def _read_on(self) -> None:
        topic = self._cluster.topics.get(self._incident.topic)
        if topic is None or not same_topic(topic, self._incident):
            return self._end(UndecidedReason.TOPIC_GONE)
        partition = topic.partitions[self._incident.partition]
        log, search = self._log_of(partition), self._search
        if log is None or search is None or partition.leader_epoch != self._epoch:
            return self._again()
        if self._offset < log.start_offset:
            self._offset = self._log_start = log.start_offset
        if self._offset >= self._target:
            return self._end(None)
        stored = log.read(self._offset, _PAGE_BYTES, self._target, at_least_one=True)
        page = [logged_batch(each) for batch in stored for each in read_batches(batch.wire())]
        if not page:
            return self._again()
        search.read(page)
        self._read += page
        self._offset = max(self._offset, page[-1].last_offset + 1)
        if search.settled:
            return self._end(None)
        return self._world.later(0.2, self._read_on)

    def _again(self) -> None:
        """Begin anew, after a while: the leader has changed, or there is none."""
        self._tries += 1
        self._search = self._begin = None
        if self._tries > _TRIES:
            return self._end(UndecidedReason.TIMED_OUT)
        return self._world.later(1.0, self.begin)

    def _end(self, obstacle: UndecidedReason | None) -> None:
        world, incident = self._world, self._incident
        expiration = int(world.schedule.broker_configs.get(*EXPIRATION)) / 1000.0
        topic = self._cluster.topics.get(incident.topic)
        facts = LogFacts(
            None if topic is None else topic.id,
            world.client_wall() * 1000.0,
            expiration,
            self._log_start,
            obstacle,
            "" if obstacle is None else obstacle.value,
        )
        resolution = judge(incident, self._search, facts)
        found = Found(
            world.schedule.seed,
            incident,
            self._values,
            resolution,
            self._begin,
            tuple(self._read),
            facts,
            frozenset(self._places()),
            self._last,
        )
        world.found.append(found)

    def _places(self) -> Iterator[int]:
        """Yield the offsets at which the leader has the batch's records, and committed."""
        topic = self._cluster.topics.get(self._incident.topic)
        if topic is None or self._incident.partition >= len(topic.partitions):
            return
        partition = topic.partitions[self._incident.partition]
        leader = partition.leader_replica
        for stored in () if leader is None else leader.log.batches:
            if stored.last_offset < partition.high_watermark:
                raw = stored.wire()
                header = read_batches(raw)[0]
                ours = header.producer_id == self._incident.producer_id and not header.control
                if ours and _values(raw) == self._values:
                    yield stored.base_offset


def _values(raw: bytes) -> tuple[ValueId | None, ...]:
    return tuple(parse_value(each.value) for each in batch_values(raw))


def end_of(partition: Partition) -> int:
    """Return where the committed part of the log ends."""
    return partition.high_watermark


def same_topic(topic: Any, incident: Incident) -> bool:
    """Return whether a topic is the one to which the batch was sent."""
    return bool(topic.id == incident.topic_id)


def drawn(seed: int) -> Schedule:
    """Return the schedule of a seed: of a profile, or, for one seed in three, of the swarm."""
    return draw_swarm(seed, "") if seed % 3 == 0 else draw(seed)


def resolve_seed(seed: int) -> ResolvingWorld:
    """Run a seed on the engine alone, with looks at the log for each batch that ends UNKNOWN."""
    world = ResolvingWorld(drawn(seed))
    world.run()
    return world


# -- mutants of the rule -------------------------------------------------------------------------


Patch = Callable[[Any, str, Any], None]
MUTANTS: dict[str, tuple[Callable[[Patch], None], bool]] = {}
"""By name: the function that breaks a rule, and whether the seeds must be run anew for it.

A mutant of the verdict alone is judged on the bytes that a run without it has read.
"""


def _mutant(*, live: bool = False) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    def register(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS[apply.__name__.replace("_", " ")] = (apply, live)
        return apply

    return register


@_mutant()
def acknowledged_record_not_looked_at(patch: Patch) -> None:
    """Ignore that the log may have lost its end: a copy may be before the record."""
    patch(LogSearch, "precedes_every_copy", property(lambda _: True))


@_mutant()
def absent_without_a_fence(patch: Patch) -> None:
    """Ignore that a request which a broker still holds is appended later."""
    patch(LogSearch, "fence", property(lambda search: search._data or search._newest))


@_mutant()
def any_batch_of_the_epoch_is_a_fence(patch: Patch) -> None:
    """Ignore that after the batch just before the wanted one, that one is appended."""

    def fence(search: LogSearch) -> LoggedBatch | None:
        newest = search._newest
        epoch = search._incident.producer_epoch
        return newest if newest is not None and newest.producer_epoch >= epoch else None

    patch(LogSearch, "fence", property(fence))


@_mutant()
def any_other_epoch_is_a_fence(patch: Patch) -> None:
    """Ignore that an older epoch fences nothing."""

    def fence(search: LogSearch) -> LoggedBatch | None:
        newest = search._newest
        epoch = search._incident.producer_epoch
        return newest if newest is not None and newest.producer_epoch != epoch else None

    patch(LogSearch, "fence", property(fence))


@_mutant()
def any_fence_counts(patch: Patch) -> None:
    """Ignore that brokers which forgot a fence go by the last batch."""
    real, take = LogSearch.fence, LogSearch._take
    fences: dict[LogSearch, LoggedBatch] = {}

    def taking(search: LogSearch, batch: LoggedBatch) -> None:
        take(search, batch)
        found = real.fget(search)  # type: ignore[attr-defined]
        if found is not None:
            fences[search] = found

    patch(LogSearch, "_take", taking)
    patch(LogSearch, "fence", property(fences.get))


@_mutant()
def forgetting_not_looked_at(patch: Patch) -> None:
    """Ignore that brokers which forgot the producer append anything (KIP-854)."""
    real = log_search._may_still_arrive

    def arrive(search: LogSearch, facts: LogFacts, read: str) -> Any:
        return real(search, facts._replace(expiration=float("inf")), read)

    patch(log_search, "_may_still_arrive", arrive)


@_mutant()
def gaps_not_looked_at(patch: Patch) -> None:
    """Ignore that a copy may have been where offsets are missing."""
    real = LogSearch.read

    def read(search: LogSearch, page: Any) -> None:
        real(search, page)
        search.gap = None

    patch(LogSearch, "read", read)


@_mutant()
def bytes_not_compared(patch: Patch) -> None:
    """Ignore that another client's batch can have the same identity."""
    patch(log_search, "_same_bytes", lambda _incident, _batch: True)


@_mutant()
def epoch_of_the_batch_not_compared(patch: Patch) -> None:
    """Ignore that sequences begin again with each epoch."""
    real = LogSearch._take

    def take(search: LogSearch, batch: LoggedBatch) -> None:
        real(search, batch)
        if not batch.control and batch.base_sequence == search._incident.base_sequence:
            search.found = search.found or batch

    patch(LogSearch, "_take", take)


@_mutant()
def second_identity_not_looked_at(patch: Patch) -> None:
    """Ignore that with in_doubt="resend" the first identity may be in the log."""
    real = log_search._undecided

    def undecided(incident: Incident, search: LogSearch | None, facts: LogFacts) -> Any:
        return real(dataclasses.replace(incident, renumbered=False), search, facts)

    patch(log_search, "_undecided", undecided)


@_mutant(live=True)
def begins_at_the_last_attempt(patch: Patch) -> None:
    """Ignore that what was acknowledged later may be behind a copy of the first attempt."""
    real = incident_module.incident_of

    def incident_of(batch: Any, *rest: Any) -> Any:
        first, batch.first_attempt = batch.first_attempt, batch.attempt
        try:
            return real(batch, *rest)
        finally:
            batch.first_attempt = first

    patch(incident_module, "incident_of", incident_of)


@_mutant()
def leader_epoch_not_named(patch: Patch) -> None:
    """Ignore that without the leader epoch the pages may be parts of two histories."""

    def request(*place: Any, leader_epoch: int, page_bytes: int) -> Any:
        del leader_epoch
        return read_back_request(*place, page_bytes=page_bytes)

    patch(log_reading, "read_back_request", request)


@_mutant(live=True)
def uncommitted_batches_read(patch: Patch) -> None:
    """Ignore that an election may cut off what is above the high watermark."""
    patch(
        sys.modules[__name__], "end_of", lambda partition: partition.leader_replica.log.end_offset
    )


@_mutant(live=True)
def topic_not_compared(patch: Patch) -> None:
    """Ignore that a recreated topic has another log."""
    patch(sys.modules[__name__], "same_topic", lambda _topic, _incident: True)
    real = log_search._undecided

    def undecided(incident: Incident, search: LogSearch | None, facts: LogFacts) -> Any:
        return real(incident, search, facts._replace(topic_id=incident.topic_id))

    patch(log_search, "_undecided", undecided)


@contextmanager
def _applied(name: str) -> Iterator[None]:
    saved: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, attribute: str, value: Any) -> None:
        saved.append((owner, attribute, owner.__dict__[attribute]))
        setattr(owner, attribute, value)

    MUTANTS[name][0](patch)
    try:
        yield
    finally:
        for owner, attribute, value in reversed(saved):
            setattr(owner, attribute, value)


def caught(name: str, tally: Tally, seeds: range) -> str | None:
    """Return how the simulation notices a mutant; None if it does not.

    Args:
        name: the mutant.
        tally: the looks of these seeds without the mutant.
        seeds: the seeds to run for a mutant of the reading.
    """
    with _applied(name):
        if not MUTANTS[name][1]:
            for found, stored in tally.kept:
                resolution = found.judge_again()
                complaint = found.wrong(resolution, stored)
                if complaint is not None:
                    return f"seed {found.seed}: {complaint}"
            return None
        broken = Tally()
        for seed in seeds:
            broken.add(resolve_seed(seed))
            if broken.wrong:
                return broken.wrong[0]
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds, and print the figures; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulated.resolving")
    parser.add_argument("--incidents", type=int, default=1000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--mutants", action="store_true")
    options = parser.parse_args(argv)
    tally, seed = Tally(), options.first
    with quiet():
        while tally.incidents < options.incidents:
            tally.add(resolve_seed(seed), keep=options.mutants)
            seed += 1
        for line in tally.wrong[:10]:
            _say(line)
        _say(
            f"seeds {options.first} to {seed - 1}: {tally.incidents} incidents, "
            f"{tally.looks.total()} looks, {len(tally.wrong)} wrong"
        )
        _say("all looks: " + ", ".join(f"{n} {name}" for name, n in tally.looks.most_common()))
        _say(
            "last looks: " + ", ".join(f"{n} {name}" for name, n in tally.at_the_end.most_common())
        )
    missed = 0
    for name in MUTANTS if options.mutants else ():
        seeds = range(options.first, min(seed, options.first + _LIVE))
        with quiet():
            how = caught(name, tally, seeds)
        by_table = breaks_the_table(name)
        missed += how is None and not by_table
        told = "not by the simulation" if how is None else how[:100]
        _say(f"{name}: {told}; {'' if by_table else 'not '}by the rule's table of tests")
    if options.mutants:
        _say(f"{len(MUTANTS)} mutants, {len(MUTANTS) - missed} caught")
    return 1 if tally.wrong or missed else 0


def breaks_the_table(name: str) -> bool:
    """Return whether a test of the rule as a function fails with a mutant in place."""
    import pytest

    with _applied(name), redirect_stdout(io.StringIO()):
        words = [
            "-q",
            "-x",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            "-n",
            "0",
            "--assert=plain",
        ]
        return pytest.main([*words, *_TABLE]) != 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
