"""What the drill of transactions does as the application, and which error it gets for it."""

from __future__ import annotations

from aioidem import errors
from aioidem._engine.transactions import OffsetCommit, Outcome
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset

from .coordinated_bench import PLACES, Bench
from .coordinated_rows import Offsets

__all__ = ["Asks"]


class Asks(Bench):
    """Makes the calls of an application, in and out of order."""

    def _init(self) -> str | None:
        self._model.init()
        self._coordination.init()
        return None if self._reasons.error is None else "the old reason is left"

    def _change_id(self) -> str | None:
        if self._dice.random() < 0.5:
            self._reasons.report(errors.KafkaConnectionError("said before"))
        due = self._model.change_id("y")
        wrong = self._tried(due, lambda: self._coordination.change_id("y"))
        if due is None and self._reasons.error is not None:
            return "the reason under the old id is left"
        return wrong

    def _begin(self) -> str | None:
        self._cluster.learn_transaction_version(self._level)
        if self._dice.random() < 0.1:
            self._level = self._dice.choice((0, 1, 2, 3))
        self._around.gates.clear()
        level, former = self._cluster.transaction_version, self._part.outcome
        due = self._model.begin(level)
        wrong = self._tried(due, self._coordination.begin)
        if self._around.gates != ([level < 2] if due is None else []):
            return f"the gates close as {self._around.gates}"
        if (self._part.outcome is former) is (due is None):
            return "two transactions have one outcome"
        if due is None and self._dice.random() < 0.15:
            self._coordinator_is_lost()
        return wrong

    def _commit(self) -> str | None:
        flushed = self._around.flushed
        outcomes: list[Outcome] = []
        due = self._model.commit()
        wrong = self._tried(due, lambda: outcomes.append(self._coordination.commit()))
        if self._around.flushed - flushed != (due is None):
            return "what is queued is not sent at once, or it is after a refusal"
        return wrong or self._is_outcome(outcomes)

    def _abort(self) -> str | None:
        left = self._around.unsettled
        outcomes: list[Outcome] = []
        words = "may have taken place" if self._model.may_be_committed else ""
        due = self._model.abort()
        wrong = self._tried(due, lambda: outcomes.append(self._coordination.abort()), words)
        wrong = wrong or self._is_outcome(outcomes)
        return wrong or (self._followed(left) if due is None else None)

    def _is_outcome(self, told: list[Outcome]) -> str | None:
        if told and told[0] is not self._part.outcome:
            return "the outcome of another transaction is awaited"
        return None

    def _send_offsets(self) -> str | None:
        dice = self._dice
        member = GroupMember(dice.choice("ggh"), member_id=dice.choice(("", "", "m")))
        first = dice.choice((10, 10, 20))
        values = {which: TxnOffset(first) for which in PLACES[: dice.choice((1, 2, 2))]}
        given = OffsetCommit(member, values)
        got: list[OffsetCommit] = []
        due, row = self._model.commit_offsets(Offsets(member, values, given))
        wrong = self._tried(due, lambda: got.append(self._part.commit_offsets(given)))
        if due is None and got != [row.given]:
            return "another commit of offsets is to be awaited"
        return wrong

    def _coordinator_is_lost(self) -> None:
        at = self._model.places.get(self._model.own)
        node = self._dice.randrange(4) if at is None or self._dice.random() < 0.2 else at
        self._part.on_node_lost(node)
        self._model.lose_node(node)
