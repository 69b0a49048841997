"""The drill of what partitions report: epochs, losses, verdicts, and the end of the producer.

Partitions report to `Effects`. Each report is kept; what the other parts are told of it, and what
an operator reads, follows from all reports so far.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Final

from aioidem import errors
from aioidem._engine.accusations import Accusation, Accusations
from aioidem._engine.backoff import Backoff
from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import IdentityLedger, ProducerIdentity
from aioidem._engine.memory import ByteBudget
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.no_transactions import NoTransactions
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem._log import LogLine

from .comparing import unequal

__all__ = ["ToldTransactions", "drill_reported"]

_STEPS: Final = 30
_LAST_EPOCH: Final = 32767
_WHERE: Final = "t-3"
"""The partition that reports."""
_WHY: Final = "the log is short"
"""The reason that it gives."""


def drill_reported(dice: Random) -> Iterator[str]:
    """Yield what the other parts are told of a partition's reports that does not follow."""
    for wrong in _ReportDrill(dice).run():
        yield f"reports: {wrong}"
        return


class ToldTransactions(NoTransactions):
    """Transactions that do nothing, and keep what they are told."""

    def __init__(self) -> None:
        super().__init__(IdentityLedger(), Backoff(0.1, 1.0, lambda: 0.5))
        self.told: list[tuple[object, ...]] = []
        self.coordinated = False

    @property
    def grants_epochs(self) -> bool:
        """Whether a coordinator raises epochs, as the drill says."""
        return self.coordinated

    def fail(self, error: errors.KafkaError | None) -> None:
        """Keep the error."""
        self.told.append(("fail", error))

    def die(self, error: errors.KafkaError) -> None:
        """Keep the error."""
        self.told.append(("die", error))

    def on_numbers_given_up(self, where: str, reason: str) -> None:
        """Keep the partition and the reason."""
        self.told.append(("given up", where, reason))

    def not_added(self, topic: str, partition: int) -> str | None:
        """Say that odd partitions are not added yet."""
        return f"{topic}-{partition} is not added" if partition % 2 else None


class _ReportDrill:
    """`Effects`, and all that partitions have reported."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._ledger = IdentityLedger()
        self._metadata = MetadataRefresher(300.0, Backoff(0.1, 1.0, lambda: 0.5))
        self._transactions = ToldTransactions()
        self._transactions.coordinated = dice.random() < 0.3
        self._accusations = Accusations()
        self._outcomes = Outcomes(ByteBudget(1000), self._transactions)
        self._effects = Effects(
            self._outcomes, self._metadata, self._ledger, self._transactions, self._accusations
        )
        self._metadata.sent()
        self._now = 100.0
        # The identities that were ever in use, and the present one; None if its epochs are used up.
        self._identities: list[ProducerIdentity] = []
        self._current: ProducerIdentity | None = None
        self._grant()
        self._verdicts: list[Accusation] = []
        self._waits: list[float] = []
        self._ends: list[str] = []
        self._losses = 0
        self._wanted = False
        self._fatal: errors.KafkaError | None = None
        # What the present report must tell the transactions, and the operator: the line, its level
        # (None for the line's own), and words in it.
        self._told: list[tuple[object, ...]] = []
        self._lines: list[tuple[LogLine, int | None, tuple[str, ...]]] = []

    def run(self) -> Iterator[str]:
        """Report what happens, and yield what is told that does not follow."""
        actions = [self._give_up, self._give_up, self._lose, self._end_doubt, self._wait]
        actions += [self._die, self._fail, self._change_window, self._accuse, self._accuse]
        actions += [self._judge, self._refresh, self._ask]
        for wrong in self._differences():
            if wrong is not None:
                yield f"{wrong} at first"
                return
        for _ in range(_STEPS):
            self._now += self._dice.choice((0.0, 1.0, 5.0))
            action = self._dice.choice(actions)
            self._told.clear()
            self._lines.clear()
            self._transactions.told.clear()
            for wrong in (action(), *self._differences()):
                if wrong is not None:
                    yield f"{wrong} after {action.__name__}"
                    return

    def _grant(self) -> None:
        """Grant the producer an id that is new, and whose epochs may soon be used up."""
        self._ledger.ask()
        producer, epoch = len(self._identities), self._dice.choice((0, 0, _LAST_EPOCH - 1))
        self._current = self._ledger.grant(producer, epoch)
        self._identities.append(self._current)

    # -- what partitions report; each returns what is wrong by itself

    def _give_up(self) -> str | None:
        """Give up numbers of some identity: only those of the present one need another epoch."""
        if self._current is None:
            self._grant()
        identity = self._dice.choice((self._current, *self._identities, None))
        self._effects.bump(_WHERE, identity, _WHY)
        self._told.append(("given up", _WHERE, _WHY))
        if identity != self._current or self._current is None or self._transactions.coordinated:
            return None
        self._lines.append((LogLine.EPOCH_BUMPED, None, (_WHERE, _WHY)))
        producer, epoch = self._current
        self._current = None if epoch == _LAST_EPOCH else ProducerIdentity(producer, epoch + 1)
        self._identities += [] if self._current is None else [self._current]
        return None

    def _lose(self) -> str | None:
        self._losses += 1
        self._effects.data_loss(_WHERE, _WHY)
        self._lines.append((LogLine.DATA_LOSS, None, (_WHERE, _WHY)))
        told = self._transactions.told
        if len(told) != 1 or told[0][0] != "fail":
            return f"the transaction is told {told} of lost data, not one failure"
        self._told = told.copy()
        error = told[0][1]
        named = isinstance(error, errors.OutOfOrderSequenceNumber) and _WHERE in str(error)
        due = f"an OutOfOrderSequenceNumber that names {_WHERE} and {_WHY!r}"
        return None if named and _WHY in str(error) else f"{error!r} for lost data, not {due}"

    def _end_doubt(self) -> str | None:
        self._ends.append(self._dice.choice(("probe", "resend", "unknown")))
        self._effects.doubt_ended(self._ends[-1])
        return None

    def _wait(self) -> str | None:
        self._waits.append(self._dice.choice((0.0, 0.5, 3.0)))
        self._effects.waited_at_gate(self._now - self._waits[-1], self._now)
        return None

    def _die(self) -> str | None:
        if self._dice.random() < 0.7:
            return None
        error = errors.KafkaError(f"error at {self._now}")
        other = errors.KafkaError("the end of the transaction")
        self._transactions.cause = self._dice.choice((None, other))
        self._effects.fatal(error)
        self._told.append(("die", error))
        self._fatal = self._fatal or self._transactions.cause or error
        return None

    def _fail(self) -> str | None:
        error = errors.KafkaError("no such group")
        self._effects.fail_transaction(_WHERE, error)
        self._told.append(("fail", error))
        self._lines.append((LogLine.TRANSACTION_FAILED, None, (_WHERE, "no such group")))
        return None

    def _change_window(self) -> str | None:
        route = self._dice.choice((None, Route(1, 5, 7)))
        before, after = (self._dice.choice((1, 2, 5, 20)) for _ in range(2))
        self._effects.window_changed(_WHERE, route, before, after)
        leader = "the leader says" if route is None else "broker 5 says"
        batches = "1 batch," if after == 1 else f"{after} batches,"
        level = logging.WARNING if after < before else None
        words = (_WHERE, leader, batches, f"was {before}")
        self._lines.append((LogLine.WINDOW_CHANGED, level, words))
        return None

    def _accuse(self) -> str | None:
        route = self._dice.choice((None, Route(1, 5, 7), Route(1, 6, 8)))
        disproof = Disproof(20, self._dice.randrange(5, 9), 11)
        self._effects.disprove("t", 3, route, disproof, self._now)
        if route is None:
            return None  # nobody can be named
        self._wanted = True
        self._verdicts.append(Accusation("t", 3, route, disproof, self._now))
        text = self._verdicts[-1].text(7)
        words = (f"broker {route.leader_id}", "20 batches", f"{disproof.proved} batches", "t-3")
        missing = [each for each in (*words, "11 batches", "at most 7") if each not in text]
        return f"the accusation {text!r} lacks {missing}" if missing else None

    def _judge(self) -> str | None:
        """Let an answer to a Metadata request come, or the producer move to another cluster."""
        asked_at = self._now - self._dice.choice((0.0, 1.0, 5.0, 6.0))
        due = [each for each in self._verdicts if each.at <= asked_at]
        if self._dice.random() < 0.2:
            due = []
            self._accusations.clear()
            self._verdicts.clear()
        told = self._accusations.take_due(asked_at)
        self._verdicts = [each for each in self._verdicts if each.at > asked_at]
        return unequal({f"accusations up to {asked_at}": (told, due)})

    def _refresh(self) -> str | None:
        self._wanted = self._dice.random() < 0.5
        if self._wanted:
            self._effects.refresh_metadata()
        else:
            self._metadata.sent()
        return None

    def _ask(self) -> str | None:
        refusal = self._dice.choice((None, errors.KafkaError("refused")))
        self._transactions.last_refusal = refusal
        told = self._effects.not_added("t", 3), self._effects.not_added("t", 4)
        return unequal(
            {
                "why t-3 and t-4 are not in the transaction": (told, ("t-3 is not added", None)),
                "the coordinator's last refusal": (self._effects.refusal, refusal),
            }
        )

    # -- what follows

    def _differences(self) -> Iterator[str | None]:
        effects, meters = self._effects, self._outcomes.meters
        pairs: dict[str, tuple[object, object]] = {
            "identity": (self._ledger.current, self._current),
            "losses counted": (self._outcomes.counters.data_loss_events, self._losses),
            "how doubt has ended": (meters.doubts, Counter(self._ends)),
            "waits at the gate, and their seconds": (
                (meters.gate.count, meters.gate.total),
                (len(self._waits), sum(self._waits)),
            ),
            "what has ended the producer": (effects.fatal_error, self._fatal),
            "metadata is wanted": (self._metadata.wanted, self._wanted),
            "what transactions are told": (self._transactions.told, self._told),
            "methods and meters": (
                (effects.settle, effects.meters),
                (self._outcomes.settle, self._outcomes.meters),
            ),
        }
        yield unequal(pairs)
        events = self._outcomes.take_events()
        lines = [(event.line, event.level) for event in events]
        if lines != [(line, level) for line, level, _ in self._lines]:
            yield f"the operator is told {lines}, not {self._lines}"
            return
        for event, (_, _, words) in zip(events, self._lines, strict=True):
            if not all(word in event.text for word in words):
                yield f"the line {event.text!r} lacks one of {words}"
