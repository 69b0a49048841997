"""A bench for `Transactions` alone; the coordinator is played by hand."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from aioidem._engine.backoff import Backoff
from aioidem._engine.coordinator import CallKind
from aioidem._engine.idempotence import IdentityLedger, ProducerIdentity
from aioidem._engine.transactions import Call, OffsetCommit, Transactions, TransactionState
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset

__all__ = ["FIRST_DELAY", "HERE", "TWO", "V1", "V2", "Bench", "offsets"]

V1, V2 = 1, 2
FIRST_DELAY = 0.25
"""Seconds between the first attempt at a call and the second one; then it doubles."""
HERE = 3
"""The broker that coordinates everything."""
TWO = (("t", 0), ("t", 1))


def offsets(group: str = "g", first: int = 10, member: str = "") -> OffsetCommit:
    """Return a commit of the offsets of `TWO`."""
    values = {which: TxnOffset(first + which[1]) for which in TWO}
    return OffsetCommit(GroupMember(group, member_id=member), values)


class Bench:
    """`Transactions`, and one call to a coordinator at a time."""

    def __init__(self, version: int = V1) -> None:
        self.version = version
        self._ledger = IdentityLedger()
        backoff = Backoff(FIRST_DELAY, 60.0, lambda: 0.5)
        self.of = Transactions("x", self._ledger, backoff)

    def state(self) -> TransactionState:
        """Return the present state; a method, because a type checker takes a property to stay."""
        return self.of.state

    @property
    def identity(self) -> ProducerIdentity | None:
        """The present identity."""
        return self._ledger.current

    def next(self, now: float = 0.0, *, delivered: bool = True, quiet: bool = True) -> Call | None:
        """Return the call that is due, without sending it."""
        return self.of.next_call(now, delivered=delivered, quiet=quiet)

    def call(self, kind: CallKind, now: float = 0.0) -> Call:
        """Send the call that is due, which must be of this kind."""
        call = self.next(now)
        assert call is not None
        assert call.kind is kind
        self.of.sent(call)
        return call

    def found(self, now: float = 0.0) -> None:
        """Send FindCoordinator, and answer it."""
        self.call(CallKind.FIND, now)
        self.of.on_found(0, HERE, now)

    def seeking(self) -> Bench:
        """Bring it to where the first FindCoordinator is due."""
        self.of.init()
        return self

    def initialising(self) -> Bench:
        """Bring it to where the first InitProducerId is due."""
        self.seeking().found()
        return self

    def ready(self) -> Bench:
        """Bring it to where a transaction may begin, under the producer id 7 and the epoch 0."""
        self.initialising().call(CallKind.INIT)
        self.of.on_init(0, 7, 0, 0.0)
        return self

    def open(self) -> Bench:
        """Bring it into a transaction that has done nothing yet."""
        self.ready().of.begin(self.version)
        return self

    def adding(self) -> Bench:
        """Bring it to where AddPartitionsToTxn is due (v1)."""
        self.open()
        for which in TWO:
            self.of.admits(*which)
        return self

    def writing(self) -> Bench:
        """Bring it into a transaction that wrote to `TWO`."""
        self.adding()
        if self.version == V1:
            self.call(CallKind.ADD_PARTITIONS)
            self.of.on_partitions_added(dict.fromkeys(TWO, 0), 0.0)
        self.of.on_produced(0)
        return self

    def adding_group(self) -> Bench:
        """Bring it to where AddOffsetsToTxn is due (v1)."""
        self.open().of.commit_offsets(offsets())
        return self

    def seeking_group(self) -> Bench:
        """Bring it to where FindCoordinator of the group is due."""
        self.adding_group()
        if self.version == V1:
            self.call(CallKind.ADD_OFFSETS)
            self.of.on_group_added(0, 0.0)
        return self

    def committing_offsets(self) -> Bench:
        """Bring it to where TxnOffsetCommit is due."""
        self.seeking_group().found()
        return self

    def committing(self) -> Bench:
        """Bring it to where EndTxn(commit) is due."""
        self.writing().of.commit()
        return self

    def aborting(self) -> Bench:
        """Bring it to where EndTxn(abort) is due."""
        self.writing().of.abort()
        return self

    def renewing(self) -> Bench:
        """Bring it to where a new epoch is due after a transaction."""
        self.writing().of.renew()
        self.of.commit()
        self.end()
        self.of.outcome.told = True
        return self

    def without_coordinator(self) -> Bench:
        """Let the connection to the coordinator end, so that FindCoordinator is due."""
        self.of.on_node_lost(HERE)
        return self

    def end(self, code: int = 0, granted: tuple[int, int] = (-1, -1), now: float = 0.0) -> None:
        """Send EndTxn, and answer it."""
        self.call(CallKind.END, now)
        self.of.on_ended(code, *granted, now)

    def finish(self, now: float) -> None:
        """Answer every call with success until the transaction has ended."""
        while self.of.in_transaction:
            call = self.next(now)
            if call is None:
                break
            self.of.sent(call)
            self.answer(call, 0, now)

    def answer(
        self,
        call: Call,
        code: int,
        now: float = 0.0,
        which: Sequence[tuple[str, int]] = TWO,
    ) -> None:
        """Answer a call by one error code; without one, as the coordinator would.

        Args:
            call: the call.
            code: the error code.
            now: seconds.
            which: the partitions that the answer names.
        """
        granted = code == ErrorCode.none
        match call.kind:
            case CallKind.FIND:
                self.of.on_found(code, HERE if granted else -1, now)
            case CallKind.INIT:
                self.of.on_init(code, *((7, 9) if granted else (-1, -1)), now)
            case CallKind.ADD_PARTITIONS:
                self.of.on_partitions_added(dict.fromkeys(which, code), now)
            case CallKind.ADD_OFFSETS:
                self.of.on_group_added(code, now)
            case CallKind.COMMIT_OFFSETS:
                self.of.on_offsets_committed(dict.fromkeys(which, code), now)
            case CallKind.END:
                granted = granted and self.version == V2
                self.of.on_ended(code, *((7, 1) if granted else (-1, -1)), now)
