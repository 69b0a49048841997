"""TransactionalWorld: a world with one transactional producer, a coordinator, and a twin.

The caller has a script: transactions that it begins one after the other. It queues all records of a
transaction when it begins it, and asks for the commit at once. What a world has beside `World`:

- *mark*: the coordinator has the marker of a partition written.
- *abort*: the caller aborts the transaction. In the script such a transaction is a negative number.
- *begin*: the caller begins the next transaction, where the space lets anything happen before.
- *twin on*: the twin goes on: it asks for an identity, writes a record, and commits it.

The faults:

- *relocate*: another broker becomes the coordinator.
- *twin*: another producer with the same transactional id begins.
- *expire*: the coordinator aborts the open transaction, because it took too long.
- *refuse*, *unsure*, *fail* and *crash* also happen to calls. The coordinator answers
  CONCURRENT_TRANSACTIONS (refuse) or UNKNOWN_SERVER_ERROR (fail) to a call that it does not carry
  out, or COORDINATOR_NOT_AVAILABLE (unsure) or UNKNOWN_SERVER_ERROR (crash) to one that it does.
- *garble*: it carries an EndTxn out, and answers with an error code that no client knows.
"""

from __future__ import annotations

from typing import Any

from aioidem._engine import steps
from aioidem._engine.transactions import TransactionState
from aioidem._protocol.add_partitions import AddPartitionsAnswer
from aioidem._protocol.end_txn import EndTxnAnswer
from aioidem._protocol.find_coordinator import CoordinatorAnswer, CoordinatorKey
from aioidem._protocol.producer_id import ProducerIdAnswer, TransactionalIdentity

from . import coordinator, model
from .coordinator import Call, Granted, TransactionalLog, TransactionCoordinator
from .model import Answer, PartitionLog, Sent
from .space import Space
from .world import PRODUCER_ID, TOPIC, Pipe, World

__all__ = ["NAME", "TWINS_RECORD", "TransactionalWorld"]

NAME = "x"
"""The transactional id."""
TWINS_RECORD = 1000
"""The number of the record that the twin writes."""
_ENDED = ("committed", "aborted")
_TWIN_IS_DONE = 4


class TransactionalWorld(World):
    """The joint state of a transactional engine, its caller, the network, brokers and a twin.

    Args:
        space: what there is in this world, and what may go wrong.
        faults: how many faults may happen.
    """

    def __init__(self, space: Space, faults: int) -> None:
        self.coordinator = TransactionCoordinator(PRODUCER_ID, v2=space.transactions == "v2")
        # By number of a record: the number of its transaction.
        self.transaction_of: list[int] = []
        # What the caller was told of each transaction: "committed", "aborted", "unknown" (it may be
        # committed), "failed" (it is not committed) or, of one never begun, "none".
        self.told: list[str] = []
        self.begun = 0
        # How far the twin is: 0 is not there, 1 asks, 2 has an identity, 3 has written, 4 is done.
        self.twin = 0
        # The records of the engine that were committed when the twin got its identity.
        self.before_twin: frozenset[int] | None = None
        super().__init__(space, faults)

    def _log(self) -> PartitionLog:
        return TransactionalLog(self.space.retains, strict=self.coordinator.v2)

    def _begin(self) -> None:
        """Let the engine get its identity, and the caller begin the first transaction."""
        self.core.ask_for(TOPIC)
        self._run_engine()
        while not self.begun:
            self.do(next(each for each in self.actions() if each.split()[0] in _USUAL))

    # -- the caller --------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether the caller was told how each transaction ended."""
        return len(self.told) == len(self.space.script)

    @property
    def _unsent(self) -> int:
        return 0

    def _run_engine(self) -> None:
        """Poll the engine and let the caller act, until neither has anything to do."""
        super()._run_engine()
        while self._caller_acts():
            super()._run_engine()

    def _caller_acts(self) -> bool:
        """Let the caller do what is next in its script; return whether it did anything."""
        core, sight = self.core, self.core.sight
        if self.settled:
            return False
        if sight.transaction is TransactionState.FATAL:
            self._hear_of_the_end()
            return True
        if self.begun == len(self.told):
            if not self._may_begin or (self.space.rests and self.begun):
                return False
            self._begin_transaction()
            return True
        if sight.committed is not None:
            core.hear_outcome()
            self.told.append(_ENDED[not sight.committed])
            return True
        if sight.transaction is TransactionState.ABORTABLE:
            core.abort()
            return True
        return False

    def _hear_of_the_end(self) -> None:
        if self.begun > len(self.told):
            self.told.append("unknown" if self.core.sight.may_be_committed else "failed")
        self.told += ["none"] * (len(self.space.script) - len(self.told))

    @property
    def _may_begin(self) -> bool:
        """Whether the caller may begin the next transaction of its script."""
        over = self.begun == len(self.told) and not self.settled
        return over and self.core.sight.transaction is TransactionState.READY

    def _begin_transaction(self) -> None:
        self.core.begin_transaction()
        wanted = self.space.script[self.begun]
        for place in range(abs(wanted)):
            self.transaction_of.append(self.begun)
            self._queue(place % self.space.partitions)
        self.begun += 1
        if wanted > 0:
            self.core.commit()

    @property
    def _may_abort(self) -> bool:
        open_ = self.core.sight.transaction is TransactionState.OPEN
        return open_ and self.begun > len(self.told) and self.space.script[self.begun - 1] < 0

    # -- what may happen ---------------------------------------------------------------------------

    def actions(self) -> list[str]:
        """Return everything that may happen next."""
        found = [f"mark {each}" for each in sorted(self.coordinator.unmarked)]
        if self._may_abort:
            found.append("abort")
        if self.space.rests and self.begun and self._may_begin:
            found.append("begin")
        if 0 < self.twin < _TWIN_IS_DONE and not self.coordinator.marking:
            found.append("twin on")
        return found + super().actions()

    @property
    def _busy(self) -> bool:
        rests = self.space.rests and self._may_begin
        return rests or self._may_abort or self.coordinator.marking or super()._busy

    def _serves(self, pipe: Pipe) -> bool:
        if isinstance(pipe.requests[0], Call):
            return pipe.open or pipe.broker == self.coordinator.broker
        return super()._serves(pipe)

    def _takes(self, pipe: Pipe, fault: str) -> bool:
        if isinstance(pipe.requests[0], Call):
            return fault in _CODES and pipe.broker == self.coordinator.broker
        return super()._takes(pipe, fault)

    def _find_faults(self, found: list[str], kinds: frozenset[str]) -> None:
        super()._find_faults(found, kinds)
        if "garble" in kinds:
            for pipe in self.pipes:
                call = pipe.requests[0] if pipe.requests else None
                if isinstance(call, Call) and call.kind == "end" and self._takes(pipe, "garble"):
                    found.append(f"garble {pipe.link_id}")
        if "relocate" in kinds:
            found.append("relocate")
        if "twin" in kinds and not self.twin:
            found.append("twin")
        if "expire" in kinds and self.coordinator.state == "ongoing":
            found.append("expire")

    # -- what happens ------------------------------------------------------------------------------

    def do(self, action: str) -> None:
        """Let an action happen, and the engine react to it."""
        engine = self.core.state
        kind, _, which = action.partition(" ")
        match kind:
            case "mark":
                self._mark(int(which))
            case "abort":
                self.core.abort()
            case "begin":
                self._begin_transaction()
            case "twin":
                self._let_twin_act()
            case "garble":
                self._serve(self._pipe(int(which)), "garble")
            case "relocate":
                self.coordinator.broker = self.coordinator.broker % self.space.brokers + 1
            case "expire":
                self.coordinator.fence()
            case _:
                super().do(action)
                return
        idle = self.space.partitions == 1 and self.core.state is engine
        fault = action != "twin on" and kind not in ("mark", "abort", "begin")
        self._after(fault=fault, idle=idle)

    def _mark(self, partition: int) -> None:
        log = self.logs[partition]
        assert isinstance(log, TransactionalLog)
        known = self.coordinator
        log.mark(known.producer_id, known.epoch, known.state)
        known.marked(partition)

    def _let_twin_act(self) -> None:
        known = self.coordinator
        match self.twin:
            case 0 | 1:
                self.twin = 1
                if known.init().code == model.NONE:
                    self.twin = 2
                    self.before_twin = self.committed()
            case 2:
                self.twin = 3
                known.add(known.producer_id, known.epoch, (0,))
                mine = Sent(known.producer_id, known.epoch, 0, (TWINS_RECORD,))
                if self.logs[0].append(mine).code != model.NONE:
                    self.complaints.append("the twin's record is refused")
            case _:
                self.twin = _TWIN_IS_DONE
                # It fails if the engine has asked for another epoch: that aborts whatever is open.
                known.end(known.producer_id, known.epoch, commit=True)

    def committed(self) -> frozenset[int]:
        """Return the numbers of the records that are committed."""
        return frozenset(
            number
            for log in self.logs
            if isinstance(log, TransactionalLog)
            for offset, batch in log.entries
            if log.fates[offset] == "commit"
            for number in batch.numbers
        )

    def _serve(self, pipe: Pipe, fault: str = "") -> None:
        call = pipe.requests[0]
        if not isinstance(call, Call):
            super()._serve(pipe, fault)
            return
        del pipe.requests[0]
        if pipe.broker != self.coordinator.broker:
            answer = Granted(coordinator.NOT_COORDINATOR)
        elif fault in ("refuse", "fail"):
            answer = Granted(_CODES[fault])
        else:
            answer = self.coordinator.do(call)
            if fault and answer.code == model.NONE:
                answer = Granted(_CODES[fault])
        if pipe.open:
            pipe.answers.append((call, answer))

    def _answered(self, partition: int, batch: Sent, broker: int, fault: str) -> Answer:
        log = self.logs[partition]
        assert isinstance(log, TransactionalLog)
        writes = broker == log.leader and fault != "refuse"
        if writes and not log.holds_open(batch.producer_id, batch.epoch):
            known = self.coordinator
            if known.v2:
                code = known.add(batch.producer_id, batch.epoch, (partition,))
            elif self.space.verifies and not known.holds(batch.producer_id, batch.epoch, partition):
                code = coordinator.INVALID_TXN_STATE
            else:
                code = model.NONE
            if code != model.NONE:
                return Answer(model.INVALID_EPOCH if code == coordinator.FENCED else code)
        return super()._answered(partition, batch, broker, fault)

    def _deliver(self, pipe: Pipe) -> None:
        call, granted = pipe.answers[0]
        if not isinstance(call, Call) or not isinstance(granted, Granted):
            super()._deliver(pipe)
            return
        del pipe.answers[0]
        who = TransactionalIdentity(NAME, call.producer_id, call.epoch)
        step: steps.Request
        answer: Any
        if call.kind == "init":
            step = steps.InitTransactions(pipe.link_id, call.token, NAME, 0, None)
            answer = ProducerIdAnswer(*granted)
        elif call.kind == "add":
            step = steps.AddPartitions(pipe.link_id, call.token, who, ())
            answer = AddPartitionsAnswer({(TOPIC, each): granted.code for each in call.partitions})
        else:
            v2 = self.coordinator.v2
            step = steps.EndTransaction(pipe.link_id, call.token, who, call.commit, v2)
            answer = EndTxnAnswer(*granted)
        self.core.on_answer(step, answer, self.now)

    # -- the engine --------------------------------------------------------------------------------

    def _perform(self, step: steps.Step) -> None:
        match step:
            case steps.FindCoordinator(_, _, CoordinatorKey.TRANSACTION, _):
                at = self.coordinator.broker
                self.core.on_answer(step, CoordinatorAnswer(0, at, f"b{at}", 9092), self.now)
            case steps.InitTransactions(link_id, token, _, _, existing):
                who = (-1, -1) if existing is None else existing[1:]
                self._pipe(link_id).requests.append(Call(token, "init", *who))
            case steps.AddPartitions(link_id, token, who, partitions):
                named = tuple(index for _, index in partitions)
                self._pipe(link_id).requests.append(Call(token, "add", who[1], who[2], named))
            case steps.EndTransaction(link_id, token, who, commit, _):
                call = Call(token, "end", who[1], who[2], commit=commit)
                self._pipe(link_id).requests.append(call)
                if commit and not self._delivered:
                    self.complaints.append("EndTxn(commit) is sent before all is acknowledged")
            case _:
                super()._perform(step)

    @property
    def _delivered(self) -> bool:
        """Whether every record of the present transaction is ACKED."""
        return all(
            status == "acked"
            for number, (status, _) in enumerate(self.outcomes)
            if self.transaction_of[number] == self.begun - 1
        )


_CODES = {
    "refuse": coordinator.CONCURRENT,
    "fail": coordinator.UNKNOWN_SERVER_ERROR,
    "unsure": coordinator.COORDINATOR_GONE,
    "crash": coordinator.UNKNOWN_SERVER_ERROR,
    "garble": 1234,
}
_USUAL = ("serve", "deliver", "wait")
