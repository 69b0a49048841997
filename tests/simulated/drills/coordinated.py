"""The drill of transactions: a transactional producer, whose coordinators answer at random.

A run has few transactions, and its coordinators answer as coordinators do. Here the application,
the batches and the coordinators do anything in any order. `coordinated_model` derives the state of
the producer, which call is due and to whom, and what everybody is told. A call is one request to a
coordinator: FindCoordinator, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit
or EndTxn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._engine.transactions import TransactionState as S
from aioidem._protocol.find_coordinator import CoordinatorKey
from aioidem._protocol.metadata import BrokerAddress

from .asked_identity import drill_asked_identity
from .comparing import differs
from .coordinated_asks import Asks
from .coordinated_bench import BROKERS, OWN, PLACES
from .coordinated_calls import Calls
from .coordinated_codes import Who, classified
from .coordinated_rows import Which

__all__ = ["drill_coordinated"]

_STEPS: Final = 240


def drill_coordinated(dice: Random) -> Iterator[str]:
    """Yield what is wrong with transactions, their calls, or a request for a producer id."""
    yield from classified(dice)
    yield from drill_asked_identity(dice)
    left = _STEPS
    while left > 0:
        life = _Life(dice)
        for wrong in life.run(left):
            yield f"transactions: {wrong}"
            return
        left -= life.steps


class _Life(Calls, Asks):
    """One producer, from its first question for an identity until it has ended, and its model."""

    def run(self, most: int) -> Iterator[str]:
        """Do what happens to a producer, at random, and yield what is wrong."""
        steps_after_death = 4
        while self.steps < most and steps_after_death:
            self.steps += 1
            steps_after_death -= self._model.state is S.FATAL
            self._surroundings.begin_step()
            self._wire.throttles.clear()
            self._pass_time()
            action = self._action()
            wrong = action() or self._difference()
            if wrong is not None:
                yield f"{wrong} after {action.__name__}"
                return
        if any(error.status is not status for error, status in self._given):
            yield f"an error of the drill has another status, expected those of {self._given}"

    def _pass_time(self) -> None:
        """Let some time pass, often until just when something is due, or just before that."""
        self._now += self._dice.choice((0.0, 0.0, 0.0, 0.1, 0.3))
        number, due = self._dice.random(), self._model.awaits
        if due is not None and due > self._now and number < 0.85:
            self._now = due - self._dice.choice((0.0, 0.0, 0.01))
        elif number > 0.98 and self._now < self._model.known_from:
            self._now = self._model.known_from - self._dice.choice((0.0, 0.0, 1.0))

    def _action(self) -> Callable[[], str | None]:
        """Draw what happens next: as a rule what leads on in the present state."""
        dice, state = self._dice, self._model.state
        number = dice.random()
        if number < 0.04:
            return dice.choice(
                (self._misfortune, self._recreate, self._lose_node, self._lose_node, self._look)
            )
        if number < 0.1:
            return dice.choice((self._ask_anything, self._rest))
        if state is S.DECIDING and number < 0.12:
            return self._die
        if state in (S.FATAL, S.ABORTABLE, S.DECIDING, S.READY) and number < 0.28:
            return self._ask_anything
        if state in (S.READY, S.UNINITIALISED, S.ABORTABLE) and number < 0.9:
            return self._go_on
        if state is S.OPEN and number < 0.65:
            return dice.choice((self._add, self._settle, self._go_on))
        if state in (S.COMMITTING, S.ABORTING) and number < 0.4:
            return dice.choice((*[self._settle] * 12, self._write, self._send_offsets))
        asked = self._model.asked is not None
        return self._answer if asked is (number < 0.97) else self._poll

    def _go_on(self) -> str | None:
        """Do what an application does next."""
        match self._model.state:
            case S.UNINITIALISED:
                return self._init()
            case S.READY:
                return self._change_id() if self._dice.random() < 0.08 else self._begin()
            case S.OPEN:
                return self._dice.choice((self._commit, self._commit, self._abort, self._add))()
            case S.ABORTABLE:
                return self._abort()
        return self._rest()

    def _ask_anything(self) -> str | None:
        """Do what an application may not do now, perhaps."""
        asks = (self._begin, self._commit, self._abort, self._abort, self._change_id, self._init)
        return self._dice.choice((*asks, self._write, self._send_offsets))()

    def _add(self) -> str | None:
        return (self._write if self._dice.random() < self._write_rate else self._send_offsets)()

    def _write(self) -> str | None:
        """Append a record, and send what is queued to some partition."""
        due = self._model.sends()
        wrong = self._tried(due, self._transactions.need_open)
        self._surroundings.queued += due is None
        if self._dice.random() < 0.08:
            for number in range(self._dice.choice((9, 10, 13))):
                wrong = wrong or self._dispatch(("w", number))
        return wrong or self._dispatch(self._dice.choice(PLACES))

    def _dispatch(self, which: Which) -> str | None:
        """Send what is queued to a partition, if its batches may be sent; return what is wrong."""
        around, due = self._surroundings, self._model.admits(which)
        if due:
            around.queued, around.flying = 0, around.flying + around.queued
        return differs(f"a batch may be sent to {which}", self._transactions.admits(*which), due)

    def _settle(self) -> str | None:
        """Send what is queued, or answer the batches in flight, some of which are in doubt then."""
        around, dice, rows = self._surroundings, self._dice, self._model.rows
        if around.queued and rows.added:
            return self._dispatch(dice.choice(sorted(rows.added)))
        if around.queued and dice.random() < 0.5:
            return self._dispatch(dice.choice(rows.wanted or PLACES))
        around.doubtful -= bool(around.doubtful and dice.random() < 0.7)
        around.overdue -= bool(around.overdue)
        if around.flying and dice.random() < 0.2:
            around.flying, around.overdue = 0, 1
        while around.flying:
            around.flying -= 1
            code: int | None = 0
            if dice.random() > self._answer_rate:
                code = dice.choice((*[None] * 9, *OWN, ErrorCode.not_leader_or_follower))
            around.doubtful += code is None
            self._transactions.on_produced(code)
            rows.writes.append(code)
            if code and dice.random() < 0.3:
                self._fail()
        return None

    def _fail(self) -> None:
        """Let a batch fail so that the transaction cannot be committed."""
        error = self._error()
        self._transactions.fail(error)
        self._model.fail(self._described(error))

    def _misfortune(self) -> str | None:
        """Let a batch fail, sequences be given up, an epoch be wanted, or the producer end."""
        number = self._dice.random()
        if number < 0.25:
            self._fail()
        elif number < 0.5:
            self._transactions.on_numbers_given_up("t-0", "its log was cut off")
            self._model.give_up_numbers("t-0", "its log was cut off")
        elif number < 0.8:
            self._transactions.renew()
            self._model.reasons.append("somebody asked for it")
        else:
            self._die()
        return None

    def _die(self) -> str | None:
        """End the producer with a fatal error."""
        error = self._error()
        self._transactions.die(error)
        self._model.die(self._described(error))
        return None

    def _recreate(self) -> str | None:
        """Let a topic be recreated, to which sequences were given perhaps."""
        topic, numbered = self._dice.choice("tuv"), self._dice.random() < 0.3
        self._transactions.on_topic_recreated(topic, numbered=numbered)
        self._model.recreate(topic, numbered=numbered)
        return None

    def _lose_node(self) -> str | None:
        """Lose the connection to a coordinator, or forget an address, or learn a coordinator."""
        node = self._dice.randrange(5)
        if self._dice.random() < 0.6:
            self._coordinator_is_lost()
        elif self._dice.random() < 0.3:
            self._surroundings.nodes.pop(node, None)  # its address is forgotten
        else:
            broker = BrokerAddress(node, "c", 9094)
            self._coordination.learn_coordinator("h", broker)
            self._model.places[Who(CoordinatorKey.GROUP, "h")] = node
            learnt = self._surroundings.learnt
            return differs("brokers that are learnt", learnt, [*BROKERS.values(), broker])
        return None

    def _look(self) -> str | None:
        """Ask whether the transaction can still be committed, as a caller does."""
        return self._tried(self._model.checked(), self._transactions.check)

    def _rest(self) -> str | None:
        """Pass time; perhaps a caller hears how the transaction ended."""
        if self._model.rows.committed is not None and self._dice.random() < 0.5:
            self._transactions.outcome.told = self._model.rows.outcome_told = True
        return None
