"""The marker: a committed offset that tells a repeated Spark task what its earlier attempts wrote.

A task commits its marker in the transaction that contains its rows. The marker is an offset of a
consumer group that only this task uses. The offset is the number of the query's batch plus one, and
its metadata contain a digest of the task's rows. The function `decide` has all rules of what a
marker means. The marker is read after the producer has fenced earlier attempts: otherwise a paused
attempt could still commit after the marker was read, and the rows would be written twice.

Invariants:

- Nothing is guessed: a state that may mean lost data raises an error, which says what to do.
- `__aioidem_eos.<query id>.<task>` is both the transactional id and the group, so that one prefixed
  ACL covers a query.

Rejected: the consumer offsets of the source (only a Kafka source has them); a table elsewhere
(another system to keep consistent); a name instead of the query's id (a new checkpoint under an old
name starts again at batch 0, and whole batches would be skipped).
"""

from __future__ import annotations

import enum
import json
import math
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from aioidem.errors import KafkaError

if TYPE_CHECKING:
    from aioidem._spark.columns import RowSum

__all__ = [
    "Answer",
    "IdentityUsedError",
    "Marker",
    "MarkerAheadError",
    "MarkerError",
    "MarkerMissingError",
    "RowsChangedError",
    "TaskIdentity",
    "decide",
]

PREFIX: Final = "__aioidem_eos"
_VERSION: Final = 2
"""The format of a marker; those of another format are not read."""


class MarkerError(KafkaError):
    """The task must not write, because rows could be lost or written twice."""


class MarkerAheadError(MarkerError):
    """The marker belongs to a later batch than the task, and skipping the task would lose its rows.

    Either an older checkpoint was restored, or another query uses the same identity.
    """


class MarkerMissingError(MarkerError):
    """A marker that should exist does not: it has expired, or its topic was created anew."""


class RowsChangedError(MarkerError):
    """The batch was written before with other rows: the source or the plan is not deterministic."""


class IdentityUsedError(MarkerError):
    """The identity of a batch write, which may be used only once, was used before."""


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The identity of a task's rows; it is the same for every attempt.

    Attributes:
        query: the id that Spark keeps in the checkpoint; for a batch write the option `identity`.
        batch: the batch's number; 0 for a batch write.
        task: the number of the partition of the DataFrame that the task writes.
        run: identifies one batch write; empty for streams, whose batches are numbered.
    """

    query: str
    batch: int
    task: int
    run: str = ""

    @property
    def name(self) -> str:
        """The transactional id, and also the id of the group to which the marker is committed."""
        return f"{PREFIX}.{self.query}.{self.task}"

    def first(self) -> TaskIdentity:
        """Return the identity of task 0 of the same batch."""
        return TaskIdentity(self.query, self.batch, 0, self.run)


@dataclass(frozen=True, slots=True)
class Marker:
    """A task's marker: the last Spark batch that the task committed, and a digest of its rows.

    Attributes:
        batch: the number of the last committed batch plus one.
        rows: how many rows the task wrote in that batch.
        digest: the digest of these rows, see `RowSum`.
        run: identifies the batch write; empty for streams (`TaskIdentity.run`).
        at: when the marker was made, in seconds since the epoch.
    """

    batch: int
    rows: int
    digest: int
    run: str = ""
    at: float = field(default_factory=time.time)

    @property
    def metadata(self) -> str:
        """The metadata of the committed offset: the marker as JSON, without `batch`."""
        told = asdict(self)
        del told["batch"]
        return json.dumps({"v": _VERSION, **told}, separators=(",", ":"))

    @classmethod
    def read(cls, offset: int, metadata: str) -> Marker:
        """Read a committed offset as a marker.

        Raises:
            MarkerError: the offset was committed by another program.
        """
        try:
            told = json.loads(metadata)
            at = float(told["at"])
            if told["v"] == _VERSION and math.isfinite(at):
                rows, digest = int(told["rows"]), int(told["digest"])
                return cls(offset, rows=rows, digest=digest, run=str(told["run"]), at=at)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            pass
        raise MarkerError(
            f"the committed offset {offset} is no marker: which program commits to this group?"
        )

    def holds(self, rows: RowSum) -> bool:
        """Return whether the marker was made for these rows."""
        return (self.rows, self.digest) == (rows.rows, rows.digest)


class Answer(enum.Enum):
    """Whether a task must write its rows, or skip them because they are already written."""

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
    """Decide whether a task must write or skip its rows.

    The task must have fenced its earlier attempts before it read the markers.

    Args:
        task: the identity of the task's rows.
        own: the task's marker, if there is one.
        first: the marker of task 0, used only if `own` is missing.
        now: seconds since the epoch.
        retention: seconds for which the cluster keeps offsets of groups without members.
        missing_ok: write even if a marker is missing that should exist.

    Raises:
        MarkerAheadError: the marker belongs to a later batch.
        MarkerMissingError: a marker is missing, so the batch may already be written.
        IdentityUsedError: the identity of the batch write was used before.
    """
    if own is not None:
        return _of_own(task, own)
    if first is not None and first.run != task.run:
        raise _used(task)
    # The number of tasks differs from batch to batch, so a task may have no marker yet.
    if task.batch == 0 or missing_ok:
        return Answer.WRITE
    if task.task == 0 or first is None:
        raise MarkerMissingError(_missing(task, "it may have expired"))
    if first.batch <= task.batch:
        # The marker of task 0 is from before this batch and has not expired, so a marker of this
        # batch cannot have expired either.
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
            f"{task.name}: batch {own.batch - 1} is already written, but this is {task.batch}."
            " Was an older checkpoint restored? Skipping this batch would lose its rows: start with"
            " a new checkpoint"
        )
    return Answer.WRITE


def _used(task: TaskIdentity) -> IdentityUsedError:
    return IdentityUsedError(f"identity {task.query}: an earlier batch write has used it")


def _missing(task: TaskIdentity, why: str) -> str:
    return (
        f"{task.name}: no marker at batch {task.batch}, {why}: this batch may be written already."
        " Look at the topic, and pass marker=missing-ok to write it; raise the cluster's"
        " offsets.retention.minutes above the longest pause"
    )
