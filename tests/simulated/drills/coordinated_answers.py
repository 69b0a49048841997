"""The model of a transactional producer, and what the answers of coordinators mean to it."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._engine.coordinator import CallKind
from aioidem._engine.transactions import TransactionState as S

from .coordinated_codes import Meaning, Said, meaning, refused
from .coordinated_model import ASKING, FIRST, LONGEST, Producer
from .coordinated_rows import Due, Which

__all__ = ["Model"]

_GRAVITY: Final = (Meaning.REPEAT, Meaning.SEEK, Meaning.ABORT, Meaning.DIE)
"""Of several codes in one answer that of the gravest meaning counts, which is the last one here."""


class Model(Producer):
    """A transactional producer, as its application and its coordinators see it."""

    def _take(self) -> Due | None:
        """Return the call that was outstanding, and note that it is not any more."""
        call, self.asked = self.asked, None
        return call

    def _pause(self, now: float) -> None:
        """Note that the call is repeated after a back-off."""
        self.not_before = now + min(FIRST * 2**self.failures, LONGEST)
        self.failures += 1

    def _heard(self) -> None:
        """Note that a call succeeded: the next one need not wait."""
        self.failures, self.not_before, self.refusal = 0, 0.0, None

    def lose(self, now: float, *, written: bool) -> None:
        """Note that the connection ended before the answer came."""
        call = self._take()
        if call is None:
            return
        self.places[call.whom] = None
        self._pause(now)
        if not written or call.kind in (CallKind.FIND, CallKind.INIT):
            return
        if not self.rows.v2:
            self.reasons.append("it may be carried out in the next transaction (KAFKA-17754)")
        self.rows.lost.append(call)
        if call.kind is CallKind.COMMIT_OFFSETS:
            self.rows.writes.append(None)
            for queued in list(self.rows.queue):
                if self.rows.could_be_overwritten(queued):
                    self.fail_for(queued)

    def unsupported(self, cause: Said) -> None:
        """Note that no broker has the API."""
        self._take()
        self._no_identity(cause)

    def _no_identity(self, cause: Said) -> None:
        """Note that no identity is granted: the application is told, or the producer ends."""
        if self.state is S.INITIALISING:
            self.state, self.cause = S.UNINITIALISED, cause
        else:
            self.die(cause)

    def found(self, code: int, node_id: int, now: float) -> None:
        """Take the answer to FindCoordinator."""
        call = self._take()
        if call is None:
            return
        if code:
            self._refused(call, code, now)
        elif node_id < 0:
            self._pause(now)
        else:
            self.places[call.whom] = node_id
            self._heard()

    def _newer(self, identity: tuple[int, int]) -> bool:
        """Return whether an identity is valid, with another id or a higher epoch than the last."""
        if min(identity) < 0:
            return False
        former = self.identity
        return former is None or former[0] != identity[0] or former[1] < identity[1]

    def granted(self, code: int, identity: tuple[int, int], now: float) -> None:
        """Take the answer to InitProducerId."""
        call = self._take()
        if call is None or self.state is S.FATAL:
            return
        if code:
            self._refused(call, code, now)
        elif self._newer(identity):
            self.identity, self.rotated, self.state = identity, None, S.READY
            self.reasons.clear()
            self._heard()
        else:
            self._pause(now)

    def partitions_added(self, codes: dict[Which, int], now: float) -> None:
        """Take the answer to AddPartitionsToTxn."""
        call = self._take()
        if call is None:
            return
        added = [which for which in call.partitions if codes.get(which) == 0]
        if added:
            self.rows.accepted.append(call)
        self.rows.added.update(added)
        self.rows.wanted = [which for which in self.rows.wanted if which not in added]
        self._all(call, list(call.partitions), codes, now)

    def group_added(self, code: int, now: float) -> None:
        """Take the answer to AddOffsetsToTxn."""
        call = self._take()
        if call is None or call.offsets is None:
            return
        if code:
            self._refused(call, code, now)
            return
        self.rows.accepted.append(call)
        self.rows.groups.append(call.offsets.member.group_id)
        self._heard()

    def offsets_committed(self, codes: dict[Which, int], now: float) -> None:
        """Take the answer to TxnOffsetCommit."""
        call = self._take()
        if call is None or call.offsets is None:
            return
        row, asked = call.offsets, list(call.offsets.left)
        row.left = {which: row.left[which] for which in asked if codes.get(which) != 0}
        self.rows.queue = [each for each in self.rows.queue if each is not row or row.left]
        self.rows.writes += [codes.get(which) for which in asked]
        self._all(call, asked, codes, now)

    def _all(self, call: Due, asked: list[Which], codes: dict[Which, int], now: float) -> None:
        """Act on the first of the gravest codes; what has none was not served in time."""
        late = ErrorCode.request_timed_out
        refusals = [(codes.get(which, late), which) for which in asked if codes.get(which) != 0]
        if not refusals:
            self._heard()
            return
        gravity = {code: _GRAVITY.index(meaning(call.kind, code)) for code, _ in refusals}
        worst = next(code for code, _ in refusals if gravity[code] == max(gravity.values()))
        self._refused(call, worst, now, [which for code, which in refusals if code == worst])

    def ended(self, code: int, identity: tuple[int, int], now: float) -> None:
        """Take the answer to EndTxn."""
        call = self._take()
        if call is None or self.state is S.FATAL:
            return
        if code and not call.commit and self._nothing_to_abort(code, now):
            self._heard()
            self.end(committed=False)
        elif code:
            if call.commit:
                self.rows.commits.append(code)
            self._refused(call, code, now)
        else:
            self._heard()
            if self._newer(identity):
                other = self.identity is not None and self.identity[0] != identity[0]
                self.identity, self.rotated = identity, now if other else None
                self.reasons.clear()
            elif self.rows.v2:
                self.reasons.append("the end of a transaction has to raise the epoch (KIP-890)")
            self.end(committed=call.commit)

    def _nothing_to_abort(self, code: int, now: float) -> bool:
        """Return whether a refusal of EndTxn(abort) shows that no transaction is open.

        If it may be that one is opened later, or that another producer has the id, another epoch is
        needed.
        """
        rows = self.rows
        if rows.in_doubt or self.finishing(code, now):
            return False
        if code == ErrorCode.invalid_txn_state:
            if rows.known or rows.v2:
                self.reasons.append("a late request may begin the transaction again")
            return True
        forgotten = code == ErrorCode.invalid_producer_id_mapping
        fenced = code == ErrorCode.producer_fenced and rows.v2 and not rows.known
        if forgotten or fenced:
            self.reasons.append("only InitProducerId tells whether another producer has the id")
        return forgotten or fenced

    def _refused(
        self, call: Due, code: int, now: float, partitions: list[Which] | None = None
    ) -> None:
        """Take an error code; `partitions` are those that have it."""
        by = self.places.get(call.whom)
        self.refusal = cause = refused(call.kind, call.whom, code, by, partitions or [])
        means = meaning(call.kind, code)
        to_end = call.kind is CallKind.END
        if self.finishing(code, now) or means is Meaning.REPEAT:
            self._pause(now)
        elif means is Meaning.SEEK:
            self.places[call.whom] = None
            self._pause(now)
        elif means is Meaning.DIE:
            self.die(cause)
        elif means is Meaning.TELL or (call.whom == self.own and self.state in ASKING[:2]):
            self._no_identity(cause)
        elif to_end and call.commit and (means is Meaning.ABORT or self.rows.v2):
            self.state, self.cause = S.ABORTABLE, cause
        elif to_end or (call.kind is CallKind.FIND and call.whom == self.own):
            self.die(cause)  # no abort is possible without this call
        else:
            self.fail(cause)
