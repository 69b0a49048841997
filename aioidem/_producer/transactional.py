"""The transactional calls of `Producer`: begin, commit, abort, and send offsets.

Each call gives an order to the engine (`aioidem._engine`) and waits for the result. If a call times
out or is cancelled, the engine continues, and calling again waits for the same result.

What to do about an error:

- `AbortableTransactionError`: call `abort_transaction()`, then begin another transaction.
- `KafkaTimeoutError`: call again; nothing is lost.
- `IllegalStateError`, `IllegalOperation`: the call does not fit the transaction's state, which has
  not changed.
- Every other error is fatal, such as a newer producer with the same transactional id or a missing
  right: close the producer. After a commit the error's `status` says whether the transaction may
  have been committed (UNKNOWN) or was not (NOT_WRITTEN).

Rejected: a transaction object with a `send` of its own. The protocol allows a producer one
transaction at a time, and a second place to send from would hide that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel

from aioidem import errors
from aioidem._config import ProducerConfig, validate_topic
from aioidem._engine import ProducerCore
from aioidem._engine.coordination import Coordination
from aioidem._engine.transactions import OffsetCommit, Transactions, TransactionState
from aioidem._flight.recorder import FlightRecorder
from aioidem._producer.arguments import check_timeout, checked_partition, whole_number
from aioidem._producer.intake import with_status
from aioidem._producer.life import ProducerLife
from aioidem._producer.sender import Sender
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset
from aioidem.structs import (
    ConsumerGroupMetadata,
    DeliveryStatus,
    OffsetAndMetadata,
    TopicPartition,
)

__all__ = ["TransactionCalls"]

_BEFORE_LEAVING = 5.0
"""The seconds that a cancelled `async with transaction()` waits for the abort of its transaction.

If the abort takes longer, the next `begin_transaction` waits until it is done.
"""

_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1
_MAX_TEXT = 2**15 - 1
"""The most bytes that a string has in a request."""

_COMMITTING = (TransactionState.COMMITTING, TransactionState.DECIDING)
_BETWEEN = (
    TransactionState.INITIALISING,
    TransactionState.ABORTING,
    TransactionState.RENEWING,
)


class TransactionCalls:
    """The part of `Producer` that has the transactional calls.

    Without a `transactional_id` each call raises `IllegalOperation`. Each call waits for at most
    `timeout` seconds, or `max_block` if `timeout` is None. A timeout that is not a number raises
    TypeError, and NaN ValueError, before the call does anything.
    """

    config: ProducerConfig
    _core: ProducerCore
    _flight: FlightRecorder | None
    _sender: Sender
    _life: ProducerLife

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Register the transactional id for this producer.

        Registering fences an older producer with the same id and aborts its open transaction.
        `start()` registers the id already; call `init_transactions` to try again, or in code that
        keeps the order of Java's calls.

        Args:
            timeout: How many seconds to wait; None waits for `max_block`.

        Raises:
            KafkaTimeoutError: The coordinator has not granted the id yet; call again.
            KafkaError: The coordinator refuses, for example with
                `TransactionalIdAuthorizationFailed` or `InvalidTransactionTimeout`.
        """
        check_timeout(timeout)
        transactions = self._transactional()
        self._note("init")
        self._coordination.init()
        with self._life.timed("txn-init"):
            await self._until(
                lambda: transactions.state is not TransactionState.INITIALISING,
                timeout,
                "init_transactions",
            )
        if transactions.state is TransactionState.UNINITIALISED and transactions.cause is not None:
            raise transactions.cause
        if transactions.state is TransactionState.FATAL:
            transactions.check()

    async def begin_transaction(self) -> None:
        """Begin a transaction; every record sent after this call belongs to it.

        The call waits for an abort that is still going on, and for a new epoch if one has been
        requested. It sends no request of its own.

        Raises:
            IllegalStateError: A transaction is open, or a commit is still going on.
            AbortableTransactionError: The last transaction must be aborted first.
            KafkaTimeoutError: The producer is not ready within `max_block`; call again.
            KafkaError: A fatal error has ended the producer.
        """
        transactions = self._transactional()
        with self._life.timed("txn-begin"):
            await self._until(lambda: transactions.state not in _BETWEEN, None, "begin_transaction")
        self._note("begin")
        self._coordination.begin()

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver every record of the transaction, then commit it.

        Args:
            timeout: How many seconds to wait; None waits for `max_block`.

        Raises:
            AbortableTransactionError: A record was not delivered, or the coordinator has aborted
                the transaction because it took too long (KIP-588). Call `abort_transaction()`; once
                it has succeeded, nothing was committed.
            KafkaTimeoutError: The result is not known yet. The commit goes on; call again.
            IllegalStateError: No transaction is open.
            KafkaError: The producer has ended; the error's `status` is UNKNOWN if the transaction
                may have been committed, and NOT_WRITTEN if it was not.
        """
        check_timeout(timeout)
        transactions = self._core.transactions
        outcome = transactions.outcome
        try:
            self._transactional()
            self._note("commit")
            outcome = self._coordination.commit()
            with self._life.timed("txn-commit"):
                await self._until(
                    lambda: outcome.committed is not None or transactions.state not in _COMMITTING,
                    timeout,
                    "commit_transaction",
                )
            if not outcome.committed:
                transactions.check()
                raise errors.TransactionAborted("the transaction was aborted by another call")
        except errors.KafkaError as error:
            if not self._is_over():
                raise
            if not outcome.committed or outcome.told:
                raise self._of_commit(error) from error.__cause__
        self._note("told")
        outcome.told = True

    def _is_over(self) -> bool:
        return self._life.ended or self._core.fatal_error is not None

    def _of_commit(self, error: errors.KafkaError) -> errors.KafkaError:
        """Return the error of a commit that the end of the producer interrupts, with its status.

        The given error may be that of the whole producer, so it is not changed. Until the state is
        DECIDING, no EndTxn was given to a connection.
        """
        transactions = self._core.transactions
        state = transactions.state
        if error.status is not None or state not in _COMMITTING:
            return error
        deciding = state is TransactionState.DECIDING
        return with_status(
            error, DeliveryStatus.UNKNOWN if deciding else DeliveryStatus.NOT_WRITTEN
        )

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction; records without an outcome fail with `TransactionAborted`.

        Args:
            timeout: How many seconds to wait; None waits for `max_block`.

        Raises:
            KafkaTimeoutError: The result is not known yet. The abort goes on; call again.
            IllegalStateError: No transaction is open, or its commit may have taken place.
            KafkaError: A fatal error has ended the producer.
        """
        check_timeout(timeout)
        transactions = self._transactional()
        self._note("abort")
        outcome = self._coordination.abort()
        with self._life.timed("txn-abort"):
            await self._until(
                lambda: (
                    outcome.committed is not None
                    or transactions.state is not TransactionState.ABORTING
                ),
                timeout,
                "abort_transaction",
            )
        if outcome.committed is None:
            transactions.check()
        self._note("told")
        outcome.told = True

    @asynccontextmanager
    async def transaction(self, timeout: float | None = None) -> AsyncIterator[None]:
        """Return a context manager that begins a transaction and ends it with the block.

        At the end of `async with producer.transaction():` the transaction is committed. It is
        aborted if the block raises or the commit fails.

        Args:
            timeout: How many seconds the end of the block may take: the commit, and an abort after
                it, together. None is `max_block`.

        Raises:
            KafkaError: As for `begin_transaction` and `commit_transaction`.
        """
        check_timeout(timeout)
        await self.begin_transaction()
        limit = self.config.max_block if timeout is None else timeout
        ends: float | None = None
        try:
            yield
            ends = anyio.current_time() + limit
            await self.commit_transaction(limit)
        except Exception:
            left = limit if ends is None else max(0.0, ends - anyio.current_time())
            await self._leave_transaction(left)
            raise
        except BaseException:  # cancelled: the shield delays the cancellation, so keep it short
            with anyio.move_on_after(_BEFORE_LEAVING, shield=True):
                await self._leave_transaction(timeout)
            raise

    async def _leave_transaction(self, timeout: float | None) -> None:
        """Abort the transaction if possible; raise no error, because the block has raised one."""
        with suppress(errors.KafkaError):
            await self.abort_transaction(timeout)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit a consumer group's offsets as a part of the transaction.

        Args:
            offsets: The next offset to be read in each partition, alone or with metadata.
            group: The group's id, or better the consumer's `ConsumerGroupMetadata`, with which
                brokers refuse the offsets of a consumer that has lost its partitions (KIP-447).
                With the id alone, two consumers of one group may process the same records.
            timeout: How many seconds to wait; None waits for `max_block`.

        Raises:
            AbortableTransactionError: The offsets were refused; `__cause__` says why.
            KafkaTimeoutError: The result is not known yet; call again with the same arguments.
            TypeError: An offset or the group has the wrong type.
            RecordError: An offset, a topic or a partition is illegal.
            IllegalStateError: No transaction is open.
            KafkaError: A fatal error has ended the producer.
        """
        check_timeout(timeout)
        transactions = self._transactional()
        who = group if isinstance(group, ConsumerGroupMetadata) else ConsumerGroupMetadata(group)
        commit = OffsetCommit(GroupMember(*_checked_group(who)), _checked_offsets(offsets))
        if not commit.offsets:
            await anyio.lowlevel.checkpoint()
            return
        self._note("offsets", commit)
        pending = transactions.commit_offsets(commit)
        self._sender.wakeup.set()
        with self._life.timed("txn-send-offsets"):
            await self._until(
                lambda: pending not in transactions.offsets, timeout, "send_offsets_to_transaction"
            )
        if pending.left:
            transactions.check()
            raise errors.TransactionAborted(
                "the transaction was aborted before the offsets were in it"
            )

    async def _change_id(self, transactional_id: str, timeout: float) -> None:
        """Use another transactional id from now on, as if the producer had been started with it.

        Registering it fences an older producer with the same id and aborts its open transaction, as
        `start` does. Connections, metadata and the options stay; `config` still has the first id.

        Args:
            transactional_id: The other id.
            timeout: How many seconds to wait until it is registered.

        Raises:
            IllegalStateError: A transaction is open or being ended.
            KafkaTimeoutError: The coordinator has not granted the id within `timeout`.
            KafkaError: As for `init_transactions`.
        """
        self._transactional()
        self._coordination.change_id(transactional_id)
        if self._flight is not None:
            self._flight.changed_id(transactional_id)
        await self.init_transactions(timeout)

    def _learn_coordinator(self, group: str, broker: BrokerAddress) -> None:
        """Take a broker for a group's coordinator, without sending FindCoordinator.

        Raises:
            ProducerClosed: The producer is closed.
        """
        self._transactional()
        self._coordination.learn_coordinator(group, broker)
        if self._flight is not None:
            self._flight.learned_coordinator(group, broker)

    def _may_change_id(self) -> bool:
        """Return whether the last transaction is over, and nothing of its id is to be sent."""
        transactions = self._core.transactions
        return not self._life.ended and transactions.may_change_id

    def _check_transaction(self) -> None:
        """Raise an error unless records and offsets may be sent now.

        Raises:
            IllegalOperation: No transaction is open, or there is no transactional id.
            AbortableTransactionError: The transaction can only be aborted.
            KafkaError: A fatal error has ended the producer.
        """
        self._transactional().need_open()

    # -- inside ------------------------------------------------------------------------------------

    def _note(self, call: str, commit: OffsetCommit | None = None) -> None:
        """Let the flight recorder know of a call."""
        if self._flight is not None:
            self._flight.called(call, commit)

    @property
    def _coordination(self) -> Coordination:
        return self._core.coordination

    def _transactional(self) -> Transactions:
        self._life.check_open()
        if self.config.transactional_id is None:
            raise errors.IllegalOperation("transactions need a transactional_id")
        return self._core.transactions

    async def _until(self, condition: Callable[[], bool], timeout: float | None, call: str) -> None:
        limit = self.config.max_block if timeout is None else timeout
        self._sender.wakeup.set()
        with anyio.move_on_after(limit) as scope:
            await self._sender.until(lambda: condition() or self._is_over())
        if condition():
            return  # even if the producer has ended meanwhile
        if scope.cancelled_caught:
            self._life.check_open()
            raise self._life.timed_out(
                f"{call}: no result within {limit:g} s. The producer goes on with it; call again "
                f"to wait longer{self._last_refusal()}"
            )
        self._life.check_open()

    def _last_refusal(self) -> str:
        """Return the end of a timeout's message: the coordinator's last refusal, if any."""
        transactions = self._core.transactions
        refusal = transactions.last_refusal
        return "" if refusal is None else f". The coordinator's last answer: {refusal}"

    async def _end_transaction(self) -> None:
        """Abort an open transaction, and wait for its end, because the producer is closing."""
        transactions = self._core.transactions
        if self.config.transactional_id is None:
            return
        with anyio.move_on_after(self.config.max_block):
            # A commit cannot be aborted before it is decided. If it is refused then, it must be.
            for _ in range(2):
                with suppress(errors.KafkaError):
                    self._note("abort")
                    self._coordination.abort()
                self._sender.wakeup.set()
                await self._sender.until(
                    lambda: (
                        not transactions.in_transaction
                        or transactions.state is TransactionState.ABORTABLE
                        or self._is_over()
                    )
                )
                if transactions.state is not TransactionState.ABORTABLE:
                    break


def _checked_group(group: ConsumerGroupMetadata) -> ConsumerGroupMetadata:
    if not isinstance(group.group_id, str) or not group.group_id:
        raise TypeError(f"a group id is a string that is not empty, not {group.group_id!r}")
    _check_text("group id", group.group_id)
    _check_text("member id", group.member_id)
    if group.group_instance_id is not None:
        _check_text("group instance id", group.group_instance_id)
    where = f"generation of group {group.group_id!r}"
    generation = whole_number(group.generation_id, f"{where} must be int")
    if not -1 <= generation <= _MAX_INT32:
        raise errors.RecordError(f"{where}: {generation} is not within -1..{_MAX_INT32}")
    return group._replace(generation_id=generation)


def _check_text(what: str, text: object) -> None:
    """Raise an error unless Kafka's protocol can carry a string.

    Raises:
        TypeError: It is no string.
        RecordError: It has no UTF-8 encoding, or a longer one than requests can have.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what}: expected a str, got {text!r}")
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise errors.RecordError(f"{what}: {text!r} cannot be encoded as UTF-8") from error
    if length > _MAX_TEXT:
        raise errors.RecordError(f"{what}: {length} bytes are more than {_MAX_TEXT}")


def _checked_offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[tuple[str, int], TxnOffset]:
    given: object = offsets
    if not isinstance(given, Mapping):
        raise TypeError(f"offsets must be by TopicPartition in a dict, not {type(given).__name__}")
    checked: dict[tuple[str, int], TxnOffset] = {}
    for place, each in offsets.items():
        topic, number = _pair(place, "expected a TopicPartition")
        validate_topic(topic)
        partition = checked_partition(number)
        wanted = "expected an offset, or one with metadata"
        offset, metadata = _pair(each, wanted) if isinstance(each, tuple) else (each, "")
        offset = whole_number(offset, f"offset of {topic}-{partition} must be int")
        if not 0 <= offset <= _MAX_INT64:
            raise errors.RecordError(
                f"offset of {topic}-{partition}: {offset} is not within 0..{_MAX_INT64}"
            )
        if metadata is not None:
            _check_text(f"metadata of {topic}-{partition}", metadata)
        checked[topic, partition] = TxnOffset(offset, metadata=metadata)
    return checked


def _pair(given: object, expected: str) -> tuple[Any, Any]:
    """Return what has to be a pair.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(given, tuple) or len(given) != 2:
        raise TypeError(f"{given!r}: {expected}")
    return given
