"""What happens on the connections in the drill of an engine: answers, losses, strange calls."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.core import ProducerCore
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._records import build_body

from .turned_answers import MALFORMED, Brokers, wrong_after_answer
from .turned_bench import Engines
from .turned_facts import Facts, digest, wrong_after_withdrawal

__all__ = ["Wire"]

_RARE: Final = (
    steps.InitProducerId,
    steps.DescribeTopicConfig,
    steps.DescribeTopicLimit,
    steps.AskProducers,
    steps.ReadBack,
)


class Wire:
    """The connections, and what the brokers of the drill send on them.

    Attributes:
        lacks: a kind of request for which the brokers have no usable version.
    """

    def __init__(self, dice: Random, pair: Engines, world: Brokers, facts: Facts) -> None:
        self._dice = dice
        self._pair = pair
        self._world = world
        self._facts = facts
        self._config = config = pair.config
        speaks = config.window_discovery != "off"
        self._produce_version = 14 if speaks else dice.choice((9, 12, 13, 14))
        self._transaction_version = dice.randrange(3)
        self.lacks: type[Any] | None = dice.choice(_RARE) if dice.random() < 0.4 else None

    # -- what is answered -------------------------------------------------------------------------

    def serve_some(self) -> None:
        """Serve one thing or a few, with a turn of the engines after each."""
        for _ in range(self._dice.choice((1, 1, 2, 5))):
            self.serve()
            self._pair.turn()

    def serve(self) -> None:
        """Open a connection, answer a request or compress a batch: the first, or any."""
        pair, dice = self._pair, self._dice
        opening = [number for number, up in pair.links.items() if not up]
        things: list[Any] = [*opening, *pair.drafts, *pair.waiting.values()]
        if not things:
            return
        thing = things[0] if dice.random() < 0.5 else dice.choice(things)
        if isinstance(thing, int):
            self._open(thing)
        elif isinstance(thing[0], steps.Compress):
            self._compress(thing)
        elif type(thing) is self.lacks:
            self.withdraw(thing)
        else:
            self._answer(thing)

    def _open(self, number: int) -> None:
        fails = 0.3 if self._config.sasl_password is None else 0.7
        if not self._world.well and self._dice.random() < fails:
            self.lose(number)
            return
        version, level = self._produce_version, self._transaction_version
        self._pair.tell(lambda core: core.on_link_open(number, version, self._pair.now, level))
        self._pair.links[number] = True
        self._facts.opened(number, version, level)

    def _compress(self, drafts: tuple[steps.Compress, steps.Compress]) -> None:
        self._pair.drafts.remove(drafts)
        failed = not self._world.well and self._dice.randrange(6) == 0
        turn = iter(drafts)

        def compress(core: ProducerCore) -> None:
            step = next(turn)
            body = build_body(step.records, step.codec, step.level)
            core.on_compressed(step.token, errors.KafkaError("no codec") if failed else body)

        self._pair.tell(compress)

    def _answer(self, step: steps.Request) -> None:
        pair, core, now = self._pair, self._pair.core, self._pair.now
        answer = self._world.answer(step, core)
        asked = core.connections.links[step.link_id].outstanding[step.token]
        merges = self._dice.random() < 0.5

        def answered(core: ProducerCore) -> object:
            merge = core.merge_of(step, answer) if merges else None
            if (merge is not None) is not (merges and isinstance(step, steps.FetchMetadata)):
                pair.wrong.append(f"the answer to {step} is merged with {merge}")
            return core.on_answer(step, answer, now, merge)

        told = pair.tell(answered)
        pair.answered(step)
        malformed = isinstance(answer, ReadBackAnswer) and answer.records == MALFORMED
        if isinstance(step, steps.SendProduce) and self._world.stray:
            self._facts.expect(
                "the error of an answer that names too much", type(told), errors.ProtocolError
            )
            pair.ended(step.link_id)
            self._facts.expect(
                "its connection is there", step.link_id in core.connections.links, expected=False
            )
        elif malformed and isinstance(told, errors.ProtocolError):
            self.lose(step.link_id, told)
        else:
            self._facts.expect(f"the error of a proper answer to {step}", told, None)
            pair.wrong += wrong_after_answer(core, step, asked, answer, now)
        self._facts.answered(step, answer)
        if isinstance(step, steps.SendProduce) and self._world.fatal:
            self._facts.may_be_fatal()

    def lose(self, number: int | None = None, error: Exception | None = None) -> None:
        """End a connection, or fail to open it.

        If it owes an answer to Produce, it may end with one that cannot be read.
        """
        pair, dice, facts = self._pair, self._dice, self._facts
        if number is None:
            if not pair.links:
                return
            number = dice.choice([*pair.links])
        if error is None and dice.random() < 0.8:
            refused = self._config.sasl_password is not None and dice.random() < 0.8
            error = errors.AuthenticationFailedError("refused") if refused else None
            error = error or errors.KafkaConnectionError("reset")
        asked = [each for each in pair.waiting.values() if each.link_id == number]
        produce = [each for each in asked if isinstance(each, steps.SendProduce)]
        if produce and dice.random() < 0.4:
            self._misread(dice.choice(produce))
            return
        unwritten = [each.token for each in asked if dice.random() < 0.4]
        pair.tell(lambda core: core.on_link_lost(number, error, pair.now, unwritten))
        facts.lost(number, error)
        pair.ended(number)

    def _misread(self, step: steps.SendProduce) -> None:
        """End a connection with an answer to Produce that cannot be decoded."""
        pair, error = self._pair, errors.ProtocolError("no answer")
        link = pair.core.connections.links[step.link_id]
        spoke = link.discovery.speaks
        now, version = pair.now, step.version
        pair.tell(lambda core: core.on_undecodable(step.link_id, version, error, now))
        held = "could not be decoded" in link.discovery.reason and not link.discovery.speaks
        if spoke:
            self._facts.expect("v14 is held back", held, expected=version >= 14)
        self._facts.expect(
            "the connection of an undecodable answer is closed", link.closed, expected=True
        )
        pair.ended(step.link_id)

    def withdraw(self, step: steps.Request | None = None) -> None:
        """Have a request not sent, because the broker has no usable version."""
        pair, dice = self._pair, self._dice
        # Every broker has Metadata, which identifies a connection; before it nothing is withdrawn.
        links = pair.core.connections.links
        waiting = [each for each in pair.waiting.values() if links[each.link_id].identified]
        if not waiting:
            return
        rare = [each for each in waiting if not isinstance(each, steps.SendProduce)]
        step = step or dice.choice(rare or waiting)
        asked = links[step.link_id].outstanding[step.token]
        error = errors.UnsupportedVersionError("no usable version")
        pair.tell(lambda core: core.on_unsupported(step, error, pair.now))
        pair.answered(step)
        pair.wrong += wrong_after_withdrawal(pair.core, step, asked, error)

    def progress(self) -> None:
        """Let bytes move on a connection."""
        pair = self._pair
        if pair.links:
            number = self._dice.choice([*pair.links])
            pair.tell(lambda core: core.on_progress(number, pair.now))
            moved = pair.core.connections.links[number].last_progress
            self._facts.expect("the time of the last progress", moved, pair.now)

    def settle_down(self, ticks: int) -> None:
        """Serve everything at once for some ticks."""
        pair = self._pair
        for _ in range(ticks):
            for _ in range(20):
                pair.turn()
                waits = pair.waiting or pair.drafts or not all(pair.links.values())
                if pair.wrong or not waits:
                    break
                self.serve()
            pair.pass_time(1)

    # -- what changes nothing ----------------------------------------------------------------------

    def late(self) -> None:
        """Answer or withdraw a request a second time, or after its connection has ended."""
        pair, dice = self._pair, self._dice
        if not pair.over:
            return
        step = dice.choice(pair.over)
        before = digest(pair.core)
        error = errors.UnsupportedVersionError("late")
        if dice.random() < 0.5:
            told = pair.tell(lambda core: core.on_answer(step, "late", pair.now))
        else:
            told = pair.tell(lambda core: core.on_unsupported(step, error, pair.now))
        self._facts.expect("the error of a late answer", told, None)
        self._facts.expect("the engine after a late answer", digest(pair.core), before)

    def strange_call(self) -> None:
        """Tell something of a connection that is not there."""
        pair, now, error = self._pair, self._pair.now, errors.KafkaConnectionError("strange")
        before = digest(pair.core)
        calls: tuple[Callable[[ProducerCore], object], ...] = (
            lambda core: core.on_link_open(999, 14, now),
            lambda core: core.on_link_lost(999, error, now),
            lambda core: core.on_undecodable(999, 14, error, now),
            lambda core: core.on_progress(999, now),
        )
        pair.tell(self._dice.choice(calls))
        self._facts.expect("the engine after a call about no connection", digest(pair.core), before)
