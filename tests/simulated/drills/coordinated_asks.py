"""What the drill of transactions does as the application, and which errors that must raise."""

from __future__ import annotations

from aioidem import errors
from aioidem._engine.transactions import OffsetCommit, Outcome
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset

from .comparing import differs, unequal
from .coordinated_bench import PLACES, Bench
from .coordinated_rows import Offsets

__all__ = ["Asks"]


class Asks(Bench):
    """Makes the calls of an application, in and out of order."""

    def _init(self) -> str | None:
        """Begin to ask for an identity (`init_transactions`)."""
        self._model.init()
        self._coordination.init()
        return differs("why there is no identity, after init()", self._identity_request.error, None)

    def _change_id(self) -> str | None:
        """Ask for another transactional id."""
        if self._dice.random() < 0.5:
            self._identity_request.report(errors.KafkaConnectionError("said before"))
        due = self._model.change_id("y")
        wrong = self._tried(due, lambda: self._coordination.change_id("y"))
        if due is None and self._identity_request.error is not None:
            error = self._identity_request.error
            return f"why there is no identity under the new id: told {error!r}, expected None"
        return wrong

    def _begin(self) -> str | None:
        """Begin a transaction; brokers may have another level of `transaction.version` by then."""
        self._cluster.learn_transaction_version(self._level)
        if self._dice.random() < 0.1:
            self._level = self._dice.choice((0, 1, 2, 3))
        self._surroundings.gates.clear()
        level, former = self._cluster.transaction_version, self._transactions.outcome
        due = self._model.begin(level)
        wrong = self._tried(due, self._coordination.begin)
        gates = [level < 2] if due is None else []
        other = self._transactions.outcome is not former
        wrong = wrong or unequal(
            {
                "a transaction begins, with gates": (self._surroundings.gates, gates),
                "it has an outcome of its own": (other, due is None),
            }
        )
        if due is None and self._dice.random() < 0.15:
            self._coordinator_is_lost()
        return wrong

    def _commit(self) -> str | None:
        """Commit the transaction, which sends what is queued."""
        flushed = self._surroundings.flushed
        outcomes: list[Outcome] = []
        due = self._model.commit()
        wrong = self._tried(due, lambda: outcomes.append(self._coordination.commit()))
        flushes = self._surroundings.flushed - flushed
        wrong = wrong or differs("flushes that commit() begins", flushes, int(due is None))
        return wrong or self._wrong_outcome(outcomes)

    def _abort(self) -> str | None:
        """Abort the transaction, which ends records; it is refused if a commit may be done."""
        left = self._surroundings.unsettled
        outcomes: list[Outcome] = []
        words = "may have taken place" if self._model.may_be_committed else ""
        due = self._model.abort()
        wrong = self._tried(due, lambda: outcomes.append(self._coordination.abort()), words)
        wrong = wrong or self._wrong_outcome(outcomes)
        return wrong or (self._wrong_ends(left) if due is None else None)

    def _wrong_outcome(self, told: list[Outcome]) -> str | None:
        if told and told[0] is not self._transactions.outcome:
            return f"the outcome to wait for: told {told[0]}, expected that of this transaction"
        return None

    def _send_offsets(self) -> str | None:
        """Add the offsets of a consumer group to the transaction."""
        dice = self._dice
        member = GroupMember(dice.choice("ggh"), member_id=dice.choice(("", "", "m")))
        first = dice.choice((10, 10, 20))
        values = {which: TxnOffset(first) for which in PLACES[: dice.choice((1, 2, 2))]}
        given = OffsetCommit(member, values)
        got: list[OffsetCommit] = []
        due, row = self._model.commit_offsets(Offsets(member, values, given))
        wrong = self._tried(due, lambda: got.append(self._transactions.commit_offsets(given)))
        if due is None and got != [row.given]:
            return f"the commit of offsets to wait for: told {got}, expected {[row.given]}"
        return wrong

    def _coordinator_is_lost(self) -> None:
        """Lose the connection to the coordinator, or to some broker."""
        at = self._model.places.get(self._model.own)
        node = self._dice.randrange(4) if at is None or self._dice.random() < 0.2 else at
        self._transactions.on_node_lost(node)
        self._model.lose_node(node)
