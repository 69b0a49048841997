"""The transactional half of `Producer`: calls that start something in the engine and wait for it.

The engine goes on whoever waits: a call that timed out or was cancelled is taken up again by
calling it again, and a transaction whose end nobody heard of still has one.

What to do with what is raised
- `AbortableTransactionError`: `abort_transaction()`, then begin anew.
- `KafkaTimeoutError`: nothing is lost; call again.
- `IllegalStateError`, `IllegalOperation`: the call does not fit the state, which is as it was.
- anything else is fatal (fenced by a newer producer of that transactional id, not authorised):
  close this producer. Its `status`, after a commit, says whether the transaction may have been
  committed (UNKNOWN) or was not (NOT_WRITTEN).

Rejected: a transaction object that carries `send`. A producer has one transaction at a time, which
is the protocol's rule, and two places to send from would only hide that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.lowlevel

from aioidem import errors
from aioidem._config import ProducerConfig, validate_topic
from aioidem._engine import ProducerCore
from aioidem._engine.coordination import Coordination
from aioidem._engine.transactions import OffsetCommit, Transactions, TransactionState
from aioidem._producer.arguments import check_partition
from aioidem._producer.life import ProducerLife
from aioidem._producer.sender import Sender
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset
from aioidem.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

__all__ = ["TransactionCalls"]

_BEFORE_LEAVING = 5.0
"""Seconds that a cancelled block waits for its abort; the next `begin_transaction` waits on."""

_COMMITTING = (TransactionState.COMMITTING, TransactionState.DECIDING)
_BETWEEN = (
    TransactionState.INITIALISING,
    TransactionState.ABORTING,
    TransactionState.RENEWING,
)


class TransactionCalls:
    """Needs `transactional_id`; every call raises `IllegalOperation` without one.

    All waits are bounded by `timeout` seconds, `max_block` if None.
    """

    config: ProducerConfig
    _core: ProducerCore
    _sender: Sender
    _life: ProducerLife

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Get this transactional id for this producer: fences whoever had it, and ends what he left
        open. `start()` has done so; it is here for code that expects it, and to try again.

        Raises:
            KafkaTimeoutError: not done yet; call again.
            KafkaError: the coordinator refuses, for example `TransactionalIdAuthorizationFailed` or
            `InvalidTransactionTimeout`.
        """
        transactions = self._transactional()
        self._coordination.init(transactions)
        await self._until(
            lambda: transactions.state is not TransactionState.INITIALISING,
            timeout,
            "init_transactions",
        )
        if transactions.state is TransactionState.UNINITIALISED and transactions.cause is not None:
            raise transactions.cause

    async def begin_transaction(self) -> None:
        """Begin a transaction. What is sent from here on is part of it.

        It waits for an abort that goes on in the background, and for an epoch that is being asked
        for; nothing else is asked of a broker.

        Raises:
            IllegalStateError: one is open, or a commit has not been waited for.
            AbortableTransactionError: the last one must be aborted first.
            KafkaTimeoutError: not ready within `max_block`; call again. KafkaError: fatal.
        """
        transactions = self._transactional()
        await self._until(lambda: transactions.state not in _BETWEEN, None, "begin_transaction")
        self._coordination.begin(transactions)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Deliver every record of the transaction, then commit it.

        Raises:
            AbortableTransactionError: a record was not delivered, or the coordinator has aborted it
            meanwhile (KIP-588): abort it. Once that has succeeded, nothing was committed.
            KafkaTimeoutError: not known yet; call again, the commit goes on.
            IllegalStateError: no transaction is open.
            KafkaError: fatal. `status` is UNKNOWN if it may have been committed.
        """
        transactions = self._transactional()
        outcome = self._coordination.commit(transactions)
        await self._until(
            lambda: outcome.committed is not None or transactions.state not in _COMMITTING,
            timeout,
            "commit_transaction",
        )
        if not outcome.committed:
            transactions.check()
            raise errors.TransactionAborted("the transaction was aborted by another call")
        outcome.told = True

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the transaction. Records without an outcome fail with `TransactionAborted`.

        Raises:
            KafkaTimeoutError: not known yet; call again, the abort goes on.
            IllegalStateError: no transaction is open, or its commit may have taken place.
            KafkaError: fatal.
        """
        transactions = self._transactional()
        outcome = self._coordination.abort(transactions)
        await self._until(
            lambda: (
                outcome.committed is not None or transactions.state is not TransactionState.ABORTING
            ),
            timeout,
            "abort_transaction",
        )
        if outcome.committed is None:
            transactions.check()
        outcome.told = True

    @asynccontextmanager
    async def transaction(self, timeout: float | None = None) -> AsyncIterator[None]:
        """`async with producer.transaction():` begins one, commits it at the end of the block, and
        aborts it if the block raises or it cannot be committed. Raises as those calls do.

        `timeout`: seconds for the end of the block, a commit and an abort after it together.
        """
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
        except BaseException:  # cancelled: what is waited for must be shielded, and so be short
            with anyio.move_on_after(_BEFORE_LEAVING, shield=True):
                await self._leave_transaction(timeout)
            raise

    async def _leave_transaction(self, timeout: float | None) -> None:
        """Abort what can be aborted. Says nothing of its own errors: there is one already."""
        with suppress(errors.KafkaError):
            await self.abort_transaction(timeout)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit consumer offsets with the transaction: the next ones to be read, by partition.

        Args:
            offsets: a number, or one with metadata.
            group: its id; with the consumer's place in it brokers fence a consumer that has lost
                its partitions (KIP-447). Without, two consumers of one group may write twice.
            timeout: seconds.

        Raises:
            AbortableTransactionError: refused; `__cause__` says why.
            KafkaTimeoutError: not known yet; call again with the same.
            TypeError, RecordError: bad offsets. IllegalStateError: no transaction is open.
            KafkaError: fatal.
        """
        transactions = self._transactional()
        who = group if isinstance(group, ConsumerGroupMetadata) else ConsumerGroupMetadata(group)
        commit = OffsetCommit(GroupMember(*_checked_group(who)), _checked_offsets(offsets))
        if not commit.offsets:
            await anyio.lowlevel.checkpoint()
            return
        pending = transactions.commit_offsets(commit)
        self._sender.wakeup.set()
        await self._until(
            lambda: pending not in transactions.offsets, timeout, "send_offsets_to_transaction"
        )
        if pending.left:
            transactions.check()
            raise errors.TransactionAborted(
                "the transaction was aborted before the offsets were in it"
            )

    def _check_transaction(self) -> None:
        """Whether records and offsets may be sent.

        Raises:
            IllegalOperation: no transaction is open. AbortableTransactionError, KafkaError: why
            this one, or any, cannot be committed.
        """
        self._transactional().need_open()

    # -- inside ------------------------------------------------------------------------------------

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
            await self._sender.until(
                lambda: condition() or self._life.ended or self._core.fatal_error is not None
            )
        if condition():
            return  # whatever else has ended meanwhile
        if scope.cancelled_caught:
            self._life.check_open()
            raise errors.KafkaTimeoutError(
                f"{call}: not done within {limit:g} s, call again to go on waiting"
                f"{self._last_refusal()}"
            )
        self._life.check_open()

    def _last_refusal(self) -> str:
        """What a coordinator said last, for the message of a timeout."""
        transactions = self._core.transactions
        refusal = transactions.last_refusal
        return "" if refusal is None else f"; the last refusal: {refusal}"

    async def _end_transaction(self) -> None:
        """The producer is closing: abort what is open, wait for what is being ended."""
        transactions = self._core.transactions
        if self.config.transactional_id is None:
            return
        with suppress(errors.KafkaError):
            self._coordination.abort(transactions)
        self._sender.wakeup.set()
        with anyio.move_on_after(self.config.max_block):
            await self._sender.until(
                lambda: (
                    not transactions.in_transaction
                    or transactions.state is TransactionState.ABORTABLE
                    or self._life.ended
                    or self._core.fatal_error is not None
                )
            )


def _checked_group(group: ConsumerGroupMetadata) -> ConsumerGroupMetadata:
    if not isinstance(group.group_id, str) or not group.group_id:
        raise TypeError(f"a group id is a string that is not empty, not {group.group_id!r}")
    return group


def _checked_offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[tuple[str, int], TxnOffset]:
    checked: dict[tuple[str, int], TxnOffset] = {}
    for (topic, partition), each in offsets.items():
        validate_topic(topic)
        check_partition(partition)
        offset, metadata = each if isinstance(each, tuple) else (each, "")
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise TypeError(f"offset of {topic}-{partition}: expected an int, got {offset!r}")
        if offset < 0:
            raise errors.RecordError(f"offset of {topic}-{partition}: {offset} is negative")
        if metadata is not None and not isinstance(metadata, str):
            raise TypeError(f"metadata of {topic}-{partition}: expected a str, got {metadata!r}")
        checked[topic, partition] = TxnOffset(offset, metadata=metadata)
    return checked
