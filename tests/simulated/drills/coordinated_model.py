"""The model of a transactional producer: what follows from what it did, and from what happened.

It derives which state its application sees, which call is due and to whom, which errors are raised,
and when another epoch is needed. What answers change is in `coordinated_answers`.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine.coordinator import CallKind
from aioidem._engine.transactions import TransactionState as S
from aioidem._protocol.find_coordinator import CoordinatorKey
from aioidem.structs import DeliveryStatus

from .coordinated_codes import Said, Who
from .coordinated_rows import Due, Offsets, Rows, Which

__all__ = ["ASKING", "FIRST", "LONGEST", "Producer"]

FIRST: Final = 0.25
LONGEST: Final = 4.0
"""Seconds: the first pause between two attempts, and the longest."""
ASKING: Final = (S.INITIALISING, S.RENEWING, S.OPEN, S.COMMITTING, S.DECIDING, S.ABORTING)
"""The states in which calls may be made; in the first two an identity is asked for."""
_HOUR: Final = 3600.0
"""Seconds after which a coordinator must know the producer id that it has granted itself."""
_MAPPING: Final = ErrorCode.invalid_producer_id_mapping

Refusal = type[errors.KafkaError] | None
"""The error that a call of the application must raise; None if it must raise none."""


class Producer:
    """A transactional producer, as its application sees it.

    Attributes:
        own: Its transactional id, whose coordinator most calls go to.
        cause: Why the transaction cannot be committed, or why the producer has ended.
        refusal: The coordinators' last refusal, if no call succeeded since.
        places: By whose coordinator it is: the broker; None if it was lost.
        asked: The call that is outstanding.
        not_before: When the next call may be made, in seconds.
        rows: What happened in this transaction.
        reasons: Why another epoch is needed before the next transaction.
        failures: How often a call was repeated since one succeeded.
        rotated: When the end of a transaction named another producer id, in seconds.
    """

    def __init__(self, name: str) -> None:
        self.own = Who(CoordinatorKey.TRANSACTION, name)
        self.state = S.UNINITIALISED
        self.cause: Said | None = None
        self.refusal: Said | None = None
        self.identity: tuple[int, int] | None = None
        self.places: dict[Who, int | None] = {}
        self.asked: Due | None = None
        self.not_before = 0.0
        self.rows = Rows(outcome_told=True)
        self.reasons: list[str] = []
        self.failures = 0
        self.rotated: float | None = None

    # -- what is derived ---------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether a transaction was begun and has not ended."""
        return self.state in (S.OPEN, S.COMMITTING, S.DECIDING, S.ABORTABLE, S.ABORTING)

    @property
    def may_send(self) -> bool:
        """Whether the transaction may still be committed with more batches."""
        return self.state in (S.OPEN, S.COMMITTING)

    @property
    def awaits(self) -> float | None:
        """When the next call may be made; None if none is to be made now."""
        return self.not_before if self.asked is None and self.state in ASKING else None

    @property
    def known_from(self) -> float:
        """When the coordinator knows the new producer id at the latest; 0 if it is not new."""
        return 0.0 if self.rotated is None else self.rotated + _HOUR

    def finishing(self, code: int, now: float) -> bool:
        """Return whether a code may only say that the coordinator does not know the new id yet."""
        return now < self.known_from and code == _MAPPING

    def due(self, now: float, *, delivered: bool, quiet: bool) -> Due | None:
        """Return the call that is due: FindCoordinator, if its coordinator is not known.

        Args:
            now: seconds.
            delivered: whether all records have an outcome.
            quiet: whether no batch is outstanding.
        """
        if self.asked is not None or now < self.not_before:
            return None
        call = self._wanted(now, delivered=delivered, quiet=quiet)
        if call is not None and self.places.get(call.whom) is None:
            return Due(CallKind.FIND, call.whom)
        return call

    def _wanted(self, now: float, *, delivered: bool, quiet: bool) -> Due | None:
        """Return the call that leads on; a transaction that no coordinator has ends without one."""
        rows, state = self.rows, self.state
        if state in (S.INITIALISING, S.RENEWING):
            return Due(CallKind.INIT, self.own)
        if state is S.DECIDING:
            return Due(CallKind.END, self.own, commit=True)
        if self.may_send and rows.wanted:
            return Due(CallKind.ADD_PARTITIONS, self.own, tuple(rows.wanted))
        if self.may_send and rows.queue:
            group = rows.queue[0].member.group_id
            if rows.v2 or group in rows.groups:
                whom = Who(CoordinatorKey.GROUP, group)
                return Due(CallKind.COMMIT_OFFSETS, whom, offsets=rows.queue[0])
            return Due(CallKind.ADD_OFFSETS, self.own, offsets=rows.queue[0])
        committing = state is S.COMMITTING
        if not quiet or not (state is S.ABORTING or (committing and delivered)):
            return None
        # Before the coordinator knows a new producer id, it refuses InitProducerId, but not EndTxn.
        first = not committing and bool(self.reasons) and self.finishing(_MAPPING, now)
        if rows.begun or first:
            return Due(CallKind.END, self.own, commit=committing)
        self.end(committed=committing)
        return None

    # -- what the application does -----------------------------------------------------------------

    def _unless(self, *states: S) -> Refusal:
        """Return the error of a call that is allowed in some states only."""
        if self.state in states:
            return None
        if self.state is S.ABORTABLE:
            return errors.AbortableTransactionError
        if self.state is S.FATAL and self.cause is not None:
            return self.cause.kind
        return errors.IllegalStateError

    def checked(self) -> Refusal:
        """Return the error that prevents this transaction, or any, from being committed."""
        return self._unless(*(each for each in S if each not in (S.ABORTABLE, S.FATAL)))

    def sends(self) -> Refusal:
        """Return the error that a record gets."""
        refusal = self._unless(S.OPEN)
        return errors.IllegalOperation if refusal is errors.IllegalStateError else refusal

    def init(self) -> None:
        """Ask for an identity, unless that was done."""
        if self.state is S.UNINITIALISED:
            self.state, self.cause = S.INITIALISING, None

    def change_id(self, name: str) -> Refusal:
        """Become another producer, if nothing of this one is open or still to be said."""
        refusal = self._unless(S.READY)
        if refusal is None and self.reasons:
            refusal = errors.IllegalStateError
        if refusal is None:
            self.own, self.state = Who(CoordinatorKey.TRANSACTION, name), S.INITIALISING
            self.identity = self.rotated = self.refusal = None
            self.places, self.failures = {}, 0
        return refusal

    def begin(self, level: int) -> Refusal:
        """Begin a transaction."""
        refusal = self._unless(S.READY)
        if refusal is None:
            self.state, self.rows, self.failures = S.OPEN, Rows(2 if level >= 2 else 1), 0
        return refusal

    def _untold(self, *, committed: bool) -> bool:
        return self.rows.committed is committed and not self.rows.outcome_told

    def commit(self) -> Refusal:
        """Begin to commit; who comes later hears how it ended, if nobody has."""
        if self.state in (S.COMMITTING, S.DECIDING) or self._untold(committed=True):
            return None
        refusal = self._unless(S.OPEN)
        if refusal is None:
            self.state = S.COMMITTING
        return refusal

    @property
    def may_be_committed(self) -> bool:
        """Whether the commit was requested, and no caller knows how it ended."""
        return self.state is S.DECIDING or self._untold(committed=True)

    def abort(self) -> Refusal:
        """Begin to abort, unless the transaction may be committed already."""
        if self.state is S.ABORTING or self._untold(committed=False):
            return None
        if self.may_be_committed:
            return errors.IllegalStateError
        refusal = self._unless(S.OPEN, S.COMMITTING, S.ABORTABLE)
        if refusal is None:
            self.state = S.ABORTING
            self.rows.queue.clear()
        return refusal

    def commit_offsets(self, new: Offsets) -> tuple[Refusal, Offsets]:
        """Make offsets part of the transaction; return the row that has them."""
        refusal = self._unless(S.OPEN)
        if refusal is not None:
            return refusal, new
        if self.rows.could_be_overwritten(new):
            self.fail_for(new)
            return errors.AbortableTransactionError, new
        group = new.member.group_id
        of_group = [each for each in self.rows.queue if each.member.group_id == group]
        if of_group and of_group[-1].same(new):
            return None, of_group[-1]
        new.left = dict(new.values)
        self.rows.queue.append(new)
        return None, new

    def fail_for(self, new: Offsets) -> None:
        """Fail because offsets of the same group may be committed late, and replace new ones."""
        words = (f"group {new.member.group_id!r}", "TxnOffsetCommit")
        self.fail(Said(errors.KafkaConnectionError, words))

    def admits(self, which: Which) -> bool:
        """Return whether a batch may be sent to a partition; in v1 it has to be added first."""
        rows = self.rows
        if self.may_send and rows.v2:
            rows.added.add(which)
        elif self.may_send and which not in rows.added and which not in rows.wanted:
            rows.wanted.append(which)
        return self.may_send and which in rows.added

    # -- what else happens -------------------------------------------------------------------------

    def fail(self, cause: Said) -> None:
        """Make it impossible to commit the transaction, if that was not decided before."""
        if self.may_send:
            self.state, self.cause = S.ABORTABLE, cause
            self.rows.queue.clear()

    def give_up_numbers(self, where: str, reason: str) -> None:
        """Note that sequence numbers are not used again, which only another epoch allows."""
        self.reasons.append(reason)
        self.fail(Said(errors.OutOfOrderSequenceNumber, (where, reason)))

    def recreate(self, topic: str, *, numbered: bool) -> None:
        """Note that a topic is another one; in v1 its batches cannot be told from those before."""
        rows = self.rows
        if numbered or not rows.v2:
            self.reasons.append(f"{topic} was recreated")
        rows.wanted = [which for which in rows.wanted if which[0] != topic]
        if self.state is S.READY and numbered and not rows.v2:
            self.state = S.RENEWING
        elif numbered or any(name == topic for name, _ in rows.added):
            self.fail(Said(errors.UnknownTopicId, (repr(topic),)))

    def lose_node(self, node_id: int) -> None:
        """Note that a broker's connection ended: what it coordinated may move."""
        self.places = {who: at for who, at in self.places.items() if at != node_id}

    def die(self, cause: Said) -> None:
        """End the producer; the status tells what became of the commit, if one was begun."""
        if self.state is S.FATAL:
            return
        asked = self.asked is not None and self.asked.commit
        status = cause.status
        if self.open and (asked or self.rows.in_doubt):
            status = DeliveryStatus.UNKNOWN
        elif self.state in (S.COMMITTING, S.DECIDING):
            status = DeliveryStatus.NOT_WRITTEN
        self.state, self.cause = S.FATAL, cause._replace(status=status)
        self.rows.queue.clear()

    def end(self, *, committed: bool) -> None:
        """End the transaction; another epoch may be needed before the next one."""
        self.rows.committed, self.cause = committed, None
        self.state = S.RENEWING if self.reasons else S.READY

    def sent(self, call: Due) -> None:
        """Note that a call was given to a connection."""
        self.asked = call
        self.rows.sent.append(call)
        if call.kind is CallKind.END and call.commit:
            self.state = S.DECIDING
