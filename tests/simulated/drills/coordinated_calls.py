"""What the drill of transactions does as the network and the coordinators: calls and answers."""

from __future__ import annotations

from typing import Any, Final, cast

from kio.schema.errors import ErrorCode

from aioidem._engine import steps
from aioidem._engine.coordinator import CallKind
from aioidem._engine.requests import RequestKind
from aioidem._engine.transactions import TransactionState as S
from aioidem._protocol.add_offsets import AddOffsetsAnswer
from aioidem._protocol.add_partitions import AddPartitionsAnswer
from aioidem._protocol.end_txn import EndTxnAnswer
from aioidem._protocol.find_coordinator import CoordinatorAnswer
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.producer_id import ProducerIdAnswer, TransactionalIdentity
from aioidem._protocol.txn_offset_commit import TxnOffsetCommitAnswer

from .comparing import differs, typed, unequal
from .coordinated_bench import BROKERS, OWN, TIMEOUT, Bench
from .coordinated_parts import Wire
from .coordinated_rows import Due, Which

__all__ = ["Calls"]

_PASSING: Final = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out,
)
"""Codes after which a call is repeated."""
_ENDS_COMMITS: Final = (*OWN, *[ErrorCode.transaction_abortable] * 4, *[OWN[0]] * 2)
"""Codes of EndTxn while a commit may have been carried out: mostly those that permit an abort."""
_ALL: Final[tuple[int, ...]] = (*ErrorCode, 999)
"""All codes, and one that no release defines."""


class Calls(Bench):
    """Sends the calls that are due, and answers or loses them."""

    def _poll(self) -> str | None:
        """Let the engine send the call that is due, over the connections that there are."""
        around, model, dice = self._surroundings, self._model, self._dice
        around.wires = {
            at: Wire(number, dice.random() < 0.97, dice.random() < 0.97)
            for number, at in enumerate((None, *range(5)))
            if dice.random() < 0.97
        }
        if self._metadata.refreshed_at is None and dice.random() < 0.5:
            self._coordination.call(self._now)
            return differs("calls before the cluster is known", around.asked, [])
        self._metadata.answered(self._now, enough=True)
        left = around.unsettled
        due = model.due(self._now, delivered=left == 0, quiet=around.quiet)
        wire = None if due is None else self._wire_for(due)
        expected: list[steps.Step] = []
        if due is not None and wire is not None and wire.open:
            expected = [self._step_for(due, wire.link_id, around.token + 1)]
            model.sent(due)
            self._wire = wire
        self._coordination.call(self._now)
        wrong = unequal(
            {
                "calls": (typed(around.asked), typed(expected)),
                "their kinds": (around.kinds, [RequestKind.COORDINATION] * len(expected)),
            }
        )
        return wrong or self._wrong_ends(left)

    def _wire_for(self, due: Due) -> Wire | None:
        """Return the connection that a call has to use; None if there is none."""
        if due.kind is CallKind.FIND:
            return self._surroundings.wires.get(None)
        at = self._model.places[due.whom]
        if at not in self._surroundings.nodes:
            self._model.places[due.whom] = None  # nobody knows that broker's address
            return None
        wire = self._surroundings.wires.get(at)
        return wire if wire is not None and wire.identified else None

    def _step_for(self, due: Due, link_id: int, token: int) -> steps.Step:
        """Return the engine's step for a call."""
        at = link_id, token
        model = self._model
        name, identity = model.own.key, model.identity
        if due.kind is CallKind.FIND:
            return steps.FindCoordinator(*at, *due.whom)
        who = None if identity is None else TransactionalIdentity(name, *identity)
        if due.kind is CallKind.INIT or who is None:
            return steps.InitTransactions(*at, name, round(TIMEOUT * 1000), who)
        if due.kind is CallKind.END:
            return steps.EndTransaction(*at, who, due.commit, model.rows.v2)
        if due.offsets is None:
            return steps.AddPartitions(*at, who, due.partitions)
        member = due.offsets.member
        if due.kind is CallKind.ADD_OFFSETS:
            return steps.AddOffsets(*at, who, member.group_id)
        return steps.CommitOffsets(*at, who, member, dict(due.offsets.left), model.rows.v2)

    def _code(self, kind: CallKind) -> int:
        """Draw the code of an answer: mostly one that is likely for the call, in this state."""
        dice = self._dice
        number = dice.random()
        mapping = ErrorCode.invalid_producer_id_mapping
        if self._model.finishing(mapping, self._now) and number < 0.15:
            return mapping
        if number < 0.03:
            few = *_ALL, *[ErrorCode.group_authorization_failed] * 40
            return dice.choice(few if kind is CallKind.FIND else _ALL)
        in_doubt = self._model.rows.in_doubt
        if in_doubt and self._model.state is S.ABORTING and number < 0.4:
            return ErrorCode.invalid_txn_state
        if kind is CallKind.END and number < (0.6 if in_doubt else 0.3):
            return dice.choice(_ENDS_COMMITS if in_doubt else (*OWN, *OWN[:1] * 3))
        if number < 0.06:
            return dice.choice(OWN)
        late = 0.95 if kind is CallKind.INIT else 0.85
        return dice.choice(_PASSING) if number > late else 0

    def _codes(self, kind: CallKind, asked: list[Which]) -> dict[Which, int]:
        """Return the codes of an answer, which may lack some and have others."""
        dice = self._dice
        if dice.random() < 0.5:
            return dict.fromkeys(asked, self._code(kind))
        few = (0, self._code(kind), self._code(kind), ErrorCode.unknown_topic_or_partition)
        codes = {which: dice.choice(few) for which in asked if dice.random() < 0.9}
        codes["other", 7] = self._code(kind)
        return codes

    def _identity(self) -> tuple[int, int]:
        """Return an identity that a coordinator grants: the next one, as a rule."""
        dice = self._dice
        former = self._model.identity or (dice.choice((0, 7)), -1)
        nexts = [(former[0], former[1] + 1), (former[0] + 1, 0), (former[0], former[1] + 3)]
        if dice.random() < 0.85:
            return dice.choice(nexts)
        return dice.choice(((-1, -1), (-1, 3), (former[0], -1), former, (former[0], former[1] - 1)))

    def _answer(self) -> str | None:
        """Answer the call that is outstanding, or lose its connection."""
        call, now, model, around = self._model.asked, self._now, self._model, self._surroundings
        if call is None:
            return self._answer_twice()
        if self._dice.random() < (0.2 if call.kind is CallKind.END else self._loss_rate):
            return self._lose()
        link, left, delay = cast("Any", self._wire), around.unsettled, self._dice.choice((0, 70))
        code, told, learnt = self._code(call.kind), self._coordination, list[BrokerAddress]()
        refreshed = 0
        match call.kind:
            case CallKind.FIND:
                node = -1 if self._dice.random() < 0.1 else self._dice.choice((0, 1, 2, 4))
                named = CoordinatorAnswer(code, node, f"h{node}", 9093, delay)
                told.on_coordinator(link, named, now)
                if not code and node >= 0:
                    learnt = [*BROKERS.values(), BrokerAddress(node, f"h{node}", 9093)]
                model.found(code, node, now)
            case CallKind.INIT:
                identity = self._identity()
                told.on_identity(link, ProducerIdAnswer(code, *identity, delay), now)
                model.granted(code, identity, now)
            case CallKind.ADD_PARTITIONS:
                codes = self._codes(call.kind, list(call.partitions))
                told.on_partitions_added(link, AddPartitionsAnswer(codes, delay), now)
                refreshed += ErrorCode.unknown_topic_or_partition in codes.values()
                model.partitions_added(codes, now)
            case CallKind.ADD_OFFSETS:
                told.on_group_added(link, AddOffsetsAnswer(code, delay), now)
                model.group_added(code, now)
            case CallKind.COMMIT_OFFSETS:
                codes = self._codes(call.kind, [] if call.offsets is None else [*call.offsets.left])
                told.on_offsets_committed(link, TxnOffsetCommitAnswer(codes, delay), now)
                model.offsets_committed(codes, now)
            case CallKind.END:
                v2 = model.rows.v2 or self._dice.random() < 0.05
                identity = self._identity() if v2 else (-1, -1)
                told.on_ended(link, EndTxnAnswer(code, *identity, delay), now)
                model.ended(code, identity, now)
        wrong = unequal(
            {
                "throttle times of the connection (ms, at)": (self._wire.throttles, [(delay, now)]),
                "brokers that are learnt": (around.learnt, learnt),
                "requests for metadata": (around.refreshed, refreshed),
            }
        )
        return wrong or self._wrong_ends(left)

    def _answer_twice(self) -> str | None:
        """Give an answer that nobody waits for, which changes nothing."""
        part, now, code = self._transactions, self._now, self._code(CallKind.END)
        self._dice.choice(
            (
                lambda: part.on_found(code, 1, now),
                lambda: part.on_init(code, 99, 0, now),
                lambda: part.on_partitions_added({("t", 0): code}, now),
                lambda: part.on_group_added(code, now),
                lambda: part.on_offsets_committed({("t", 0): code}, now),
                lambda: part.on_ended(code, 99, 0, now),
                lambda: part.on_lost(now, written=True),
            )
        )()
        return None

    def _lose(self) -> str | None:
        """Lose the connection of a call, or find that no broker has its API."""
        if self._model.asked is not None and self._dice.random() < 0.06:
            left, error = self._surroundings.unsettled, self._error()
            self._model.unsupported(self._described(error))
            self._coordination.on_unsupported(error)
            return self._wrong_ends(left)
        written = self._dice.random() < 0.7
        self._transactions.on_lost(self._now, written=written)
        self._model.lose(self._now, written=written)
        return None
