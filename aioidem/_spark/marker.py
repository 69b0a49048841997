"""The marker: how a task that is tried again knows what the attempt before it has done.

A task commits, in the transaction that its rows are in, an offset of a group of its own: the number
of its batch plus one, with a sum of its rows beside it. `decide` is the whole rule of what that
means, as one plain function. It is read after the producer has been fenced in and never before
(a twin that was paused in between would write the rows again).

Invariants:

* No answer is guessed: what cannot be told apart from lost data is an error that names its cure.
* Names: `__aioidem_eos.<query id>.<task>` is the transactional id and the group, so that one
  prefixed ACL covers a query.

Rejected: the consumer offsets of the source (only Kafka has them), a table elsewhere (another
system to be consistent with), a name instead of the query's id (a new checkpoint under an old name
starts again at batch 0, and whole batches would be skipped).
"""

from __future__ import annotations

import enum
import json
import math
import time
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from aioidem.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Answer",
    "IdentityUsedError",
    "Marker",
    "MarkerAheadError",
    "MarkerError",
    "MarkerMissingError",
    "RowSum",
    "RowsChangedError",
    "TaskIdentity",
    "decide",
]

PREFIX: Final = "__aioidem_eos"
_MASK: Final = 2**64 - 1


class MarkerError(KafkaError):
    """This task must not write: rows would be lost or written twice."""


class MarkerAheadError(MarkerError):
    """The marker is of a later batch: an older checkpoint was restored, or the identity is another
    query's too. To skip would lose the batch.
    """


class MarkerMissingError(MarkerError):
    """There should be a marker and there is none: it expired, or its topic was made anew."""


class RowsChangedError(MarkerError):
    """The batch is written, but with other rows: the source or the plan is not deterministic."""


class IdentityUsedError(MarkerError):
    """A batch write's identity is for one write, and there was one."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Which rows these are, whoever tries to write them.

    Attributes:
        query: the id that Spark keeps in the checkpoint; of a batch write, the option `identity`.
        batch: its number; 0 of a batch write.
        task: the partition's number.
        run: of a batch write, which one; empty for streams, whose batches have numbers.
    """

    query: str
    batch: int
    task: int
    run: str = ""

    @property
    def name(self) -> str:
        """Transactional id, and group of the marker."""
        return f"{PREFIX}.{self.query}.{self.task}"

    def first(self) -> TaskIdentity:
        """Task 0 of the same batch."""
        return TaskIdentity(self.query, self.batch, 0, self.run)


@dataclass(slots=True)
class RowSum:
    """A sum over rows in which their order has no part: a repeated shuffle may change it."""

    rows: int = 0
    digest: int = 0

    def add(self, rows: Iterable[Any]) -> None:
        """Count these in; a row is anything with a faithful representation."""
        for row in rows:
            digest = blake2b(repr(row).encode(), digest_size=8).digest()
            self.digest = (self.digest + int.from_bytes(digest, "big")) & _MASK
            self.rows += 1


@dataclass(frozen=True, slots=True)
class Marker:
    """What a task committed: `batch` is the next one's number, times in seconds since the epoch."""

    batch: int
    rows: int
    digest: int
    run: str = ""
    at: float = field(default_factory=time.time)

    @property
    def metadata(self) -> str:
        """All but the number, which is the offset."""
        told = asdict(self)
        del told["batch"]
        return json.dumps({"v": 1, **told}, separators=(",", ":"))

    @classmethod
    def read(cls, offset: int, metadata: str) -> Marker:
        """A committed offset as a marker.

        Raises:
            MarkerError: somebody else committed it.
        """
        try:
            told = json.loads(metadata)
            at = float(told["at"])
            if told["v"] == 1 and math.isfinite(at):
                rows, digest = int(told["rows"]), int(told["digest"])
                return cls(offset, rows=rows, digest=digest, run=str(told["run"]), at=at)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            pass
        raise MarkerError(f"the committed offset {offset} is no marker: whose group is it?")

    def holds(self, rows: RowSum) -> bool:
        """Whether it was these rows."""
        return (self.rows, self.digest) == (rows.rows, rows.digest)


class Answer(enum.Enum):
    """What a task is to do."""

    WRITE = "write"
    SKIP = "skip"


def decide(
    task: TaskIdentity,
    own: Marker | None,
    first: Marker | None,
    *,
    now: float,
    retention: float,
    missing_ok: bool = False,
) -> Answer:
    """What a task that has fenced its twins is to do.

    Args:
        task: which rows.
        own: its marker.
        first: task 0's marker; only looked at where `own` is missing.
        now: seconds since the epoch.
        retention: seconds that the cluster keeps offsets of groups without members.
        missing_ok: write where a marker should be and is not.

    Raises:
        MarkerAheadError, MarkerMissingError, IdentityUsedError: see there.
    """
    if own is not None:
        return _of_own(task, own)
    if first is not None and first.run != task.run:
        raise _used(task)
    # The number of tasks varies: a task may be without a marker because it was never needed.
    if task.batch == 0 or missing_ok:
        return Answer.WRITE
    if task.task == 0 or first is None:
        raise MarkerMissingError(_missing(task, "it may have expired"))
    if first.batch <= task.batch:
        # It was committed before this batch began, so one of this batch could not have expired.
        return Answer.WRITE
    if first.batch == task.batch + 1 and now - first.at < retention / 2:
        return Answer.WRITE
    raise MarkerMissingError(
        _missing(task, f"and task 0's is of batch {first.batch - 1}, {now - first.at:.0f} s old")
    )


def _of_own(task: TaskIdentity, own: Marker) -> Answer:
    if own.run != task.run:
        raise _used(task)
    if own.batch == task.batch + 1:
        return Answer.SKIP
    if own.batch > task.batch:
        raise MarkerAheadError(
            f"{task.name}: batch {own.batch - 1} is written and this is batch {task.batch}: was an"
            " older checkpoint restored? To skip it would lose it: start with a new checkpoint"
        )
    return Answer.WRITE


def _used(task: TaskIdentity) -> IdentityUsedError:
    return IdentityUsedError(f"identity {task.query}: there was a write under it before")


def _missing(task: TaskIdentity, why: str) -> str:
    return (
        f"{task.name}: no marker at batch {task.batch}, {why}: this batch may be written already."
        " Look at the topic, and pass marker=missing-ok to write it; raise the cluster's"
        " offsets.retention.minutes above the longest pause"
    )
