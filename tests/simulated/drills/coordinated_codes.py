"""What a coordinator's error code means, derived from Kafka's documentation, not our table.

The sources are the protocol's list of error codes, which says what each one means and whether it
is retriable, and KIP-98 (transactions), KIP-360 (epochs), KIP-447 (consumers' membership), KIP-588
(transactions that timed out) and KIP-890 (transactions v2). `Said` describes the error that
somebody must be told.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine.coordinator import CallKind, Verdict, classify_call
from aioidem._protocol.find_coordinator import CoordinatorKey
from aioidem.structs import DeliveryStatus

from .comparing import differs

__all__ = ["VERDICTS", "Meaning", "Said", "Who", "classified", "may_be_done", "meaning", "refused"]

_MOST_NAMED: Final = 10
"""An error names no more partitions than this."""


class Meaning(enum.Enum):
    """What an error code asks of the producer."""

    REPEAT = "the coordinator cannot serve the request yet"
    SEEK = "another broker is the coordinator"
    ABORT = "this transaction cannot be committed"
    TELL = "the application asked for something that it does not get"
    NONE_OPEN = "no transaction is open, or it is in a state that does not allow the request"
    DIE = "this producer can never go on"


_RETRIABLE: Final = frozenset(int(code) for code in ErrorCode if code.retriable)
_ELSEWHERE: Final = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
_SOON: Final = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.concurrent_transactions,  # the markers of the last transaction are being written
    ErrorCode.request_timed_out,
    ErrorCode.network_exception,
    ErrorCode.unknown_server_error,  # it states no reason, so it may pass
)
_FOR_GOOD: Final = (ErrorCode.producer_fenced, ErrorCode.unsupported_version)
_BEFORE: Final = (CallKind.FIND, CallKind.INIT)
"""The calls with which a producer gets its identity, of which no transaction is a part."""


def meaning(kind: CallKind, code: int) -> Meaning:
    """Return what an error code means in the answer to a call."""
    if code in _ELSEWHERE:
        return Meaning.SEEK
    if code in _SOON:
        return Meaning.REPEAT
    if code in _FOR_GOOD:
        return Meaning.DIE
    if code == ErrorCode.transactional_id_authorization_failed:
        # Before there is an identity somebody may grant the right, and ask again.
        return Meaning.TELL if kind in _BEFORE else Meaning.DIE
    if code == ErrorCode.invalid_producer_id_mapping:
        # The coordinator forgot the id. So nothing can be ended under it either.
        return Meaning.DIE if kind is CallKind.END else Meaning.ABORT
    if code == ErrorCode.invalid_producer_epoch and kind in (CallKind.INIT, CallKind.END):
        # Old brokers say it for PRODUCER_FENCED. Elsewhere the transaction may have timed out.
        return Meaning.DIE
    if kind in _BEFORE:
        return _before(kind, code)
    return _end(code) if kind is CallKind.END else _within(kind, code)


def _before(kind: CallKind, code: int) -> Meaning:
    """Return the meaning for a call before a transaction."""
    if kind is CallKind.FIND and code == ErrorCode.group_authorization_failed:
        return Meaning.ABORT  # a transaction without this group's offsets is possible
    if kind is CallKind.FIND and code in _RETRIABLE:
        return Meaning.REPEAT
    return Meaning.TELL


def _end(code: int) -> Meaning:
    """Return the meaning for EndTxn."""
    if code == ErrorCode.invalid_txn_state:
        return Meaning.NONE_OPEN
    if code == ErrorCode.transaction_abortable:
        return Meaning.ABORT
    return Meaning.REPEAT if code in _RETRIABLE else Meaning.DIE


def _within(kind: CallKind, code: int) -> Meaning:
    """Return the meaning for a call that adds something to the transaction.

    A transaction that lacks it must not be committed; the next one may do without it.
    """
    of_partitions = kind is not CallKind.ADD_OFFSETS
    if code == ErrorCode.unknown_topic_or_partition and of_partitions:
        return Meaning.REPEAT  # a topic is not known at once to every broker
    if code == ErrorCode.operation_not_attempted and kind is CallKind.ADD_PARTITIONS:
        return Meaning.REPEAT  # because of another partition, whose code tells the reason
    if code == ErrorCode.invalid_txn_state and kind is not CallKind.COMMIT_OFFSETS:
        return Meaning.DIE
    return Meaning.ABORT


_CHECKED: Final = frozenset(
    {
        ErrorCode.unsupported_version,
        ErrorCode.invalid_request,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.concurrent_transactions,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.producer_fenced,
        ErrorCode.transaction_abortable,
    }
)
"""Codes with which a coordinator refuses EndTxn before it carries anything out."""


def may_be_done(code: int) -> bool:
    """Return whether EndTxn may have been carried out, although it was answered with this code."""
    return code not in _CHECKED


VERDICTS: Final = {
    Verdict.RETRY: Meaning.REPEAT,
    Verdict.MOVED: Meaning.SEEK,
    Verdict.ABORTABLE: Meaning.ABORT,
    Verdict.REFUSED: Meaning.TELL,
    Verdict.WRONG_STATE: Meaning.NONE_OPEN,
    Verdict.FATAL: Meaning.DIE,
}


def classified(dice: Random) -> Iterator[str]:
    """Yield what the engine takes some codes for, if they mean something else."""
    for code in (*dice.sample(list(ErrorCode), 12), 999, -7):
        if not code:
            continue
        kind = dice.choice(list(CallKind))
        taken = VERDICTS[classify_call(kind, code)]
        if taken is not meaning(kind, code):
            what = f"meaning of {code} in answer to {kind.value}"
            yield f"codes: {differs(what, taken, meaning(kind, code))}"
            return


# -- errors ----------------------------------------------------------------------------------------


class Who(NamedTuple):
    """The transactional id or the group whose coordinator is meant."""

    kind: CoordinatorKey
    key: str

    @property
    def words(self) -> str:
        """What texts call it."""
        kind = "group" if self.kind is CoordinatorKey.GROUP else "transactional id"
        return f"{kind} {self.key!r}"


class Said(NamedTuple):
    """What an error must be, what its text must name and what not, and its status."""

    kind: type[errors.KafkaError]
    words: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    status: DeliveryStatus | None = None

    def fits(self, error: errors.KafkaError | None) -> bool:
        """Return whether an error is as described."""
        if error is None or type(error) is not self.kind or error.status is not self.status:
            return False
        text = str(error)
        named = all(each in text for each in self.words)
        return named and not any(each in text for each in self.never)


def refused(
    kind: CallKind, whom: Who, code: int, by: int | None, partitions: list[tuple[str, int]]
) -> Said:
    """Describe the error of a refused call.

    Args:
        kind: the call.
        whom: whose coordinator refused it, or was to be found.
        code: the error code.
        by: the broker; None if any broker was asked.
        partitions: those that have this code.
    """
    names = [f"{topic}-{number}" for topic, number in sorted(partitions)]
    by_whom = "refused by a broker" if by is None else f"refused by broker {by}"
    words = [f"[Error {code}]", f"{kind.value} of {whom.words}", by_whom, *names[:_MOST_NAMED]]
    never = [f"{name}, refused" for name in names[_MOST_NAMED:]]
    if names[_MOST_NAMED:]:
        words.append(f" and {len(names) - _MOST_NAMED} more, refused")
    else:
        never.append(" more, refused")
    return Said(errors.error_for_code(code), tuple(words), tuple(never))
