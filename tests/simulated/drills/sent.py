"""The drill of the Sender: turns of its loop, and what connections bring between them.

What it writes, tells the engine and delivers is noted in the rows of one list, and compared with
the rows that follow from the steps that the engine gave, and from what happened on the connections.
Here each of its methods is called by itself, with a clock that only moves while the user's
callbacks run; `sent_loop` runs its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from aioidem import errors
from aioidem._engine import steps
from aioidem._producer.compressing import CompressionThreads
from aioidem._producer.sender import LONG_ANSWER, _Channel
from aioidem._records import Codec

from .sent_loop import drill_loop
from .sent_outcomes import Delivering
from .sent_parts import Asked, Wire
from .sent_words import ANSWERED, a_produce, a_question, answer_to

__all__ = ["drill_sent"]

_STEPS: Final = 40


def drill_sent(dice: Random) -> Iterator[str]:
    """Yield what the Sender does although it does not follow, or does not do although it does."""
    drill = _Drill(dice)
    with drill.bench.listening():
        wrong = next(drill.run(), None)
    if wrong is not None:
        yield wrong
    elif dice.random() < 0.5:
        yield from drill_loop(dice)


class _Drill(Delivering):
    """A Sender without its tasks, and what is due of it."""

    def run(self) -> Iterator[str]:
        """Let things happen, and yield what is wrong."""
        threads = CompressionThreads().count
        if not self._started or self.bench.drafts_at_once != 2 * threads:
            drafts = f"{self.bench.drafts_at_once} batches at once, not {2 * threads}"
            yield f"compression of {drafts}; the clock and the wish for a report: {self._started}"
        ops: list[Callable[[], None]] = [
            *[self._turn] * 10,
            *[self._answer] * 10,
            *[self._move] * 4,
            *[self._end_one] * 3,
            self._open,
            self._lose_unopened,
            self._compressed,
            self._wait,
            self._renew,
        ]
        self._open()
        self._open()
        for op in (*(self._dice.choice(ops) for _ in range(_STEPS)), self._end):
            op()
            yield from self._compare(op.__name__)

    def _some_wire(self) -> Wire | None:
        wires = list(self.bench.wires.values())
        return self._dice.choice(wires) if wires else None

    # -- turns

    def _turn(self) -> None:
        """Let the loop take a turn, in which the engine is polled unless outcomes are left over."""
        bench, dice = self.bench, self._dice
        self._prepare()
        self._left = self._sender.settled.at_once
        if self._waiting:
            self._deliver()
        if not self._waiting:
            self._poll()
        self._sender._turn()
        bench.log += [("turn", *times) for times in bench.meters.turns]
        bench.meters.turns.clear()
        for wire in bench.wires.values():
            wire.takes = dice.choice(("all", "all", "some", "none", "none"))

    def _poll(self) -> None:
        """Have the engine give some steps, and note what follows."""
        bench, dice, now = self.bench, self._dice, self._now
        self._settle()
        bench.watch.due_at, bench.watch.wakes_at = now + dice.choice((-1, 0, 1)), self._some_time()
        bench.core.wake_at = self._some_time()
        self._asks = [bench.core.wake_at, bench.watch.wakes_at, bench.unseen.due_at]
        self._due.append(("engine.poll", now, bench.wall * 1000))
        bench.steps = [self._step() for _ in range(dice.randrange(5))]
        direct: dict[Wire, None] = {}
        for step in bench.steps:
            self._foresee(step, direct)
        for wire in direct:
            self._due += bench.foresee_progress(wire, now)
        if now >= bench.watch.due_at:
            self._due.append(("watch.look", now))
            self._due += [] if bench.recorder is None else [("engine.attend",)]
        self._deliver()
        self._due.append(("turn", now, self._now))

    def _step(self) -> Any:
        """Return a step of any kind, on some connection, which may not be there."""
        dice = self._dice
        link_id = dice.choice((*self.bench.wires, *self.bench.wires, self._links + 5))
        self._tokens += 1
        match dice.randrange(8):
            case 0:
                return steps.OpenLink(link_id, "b1", 9092)
            case 1:
                return steps.CloseLink(link_id, f"reason {self._tokens}")
            case 2:
                return steps.Compress(self._tokens, [], Codec.NONE, None)
            case 3 | 4:
                return a_question(dice, link_id, self._tokens)
            case _:
                wire = self.bench.wires.get(link_id)
                old = wire is not None and wire.old
                acks = dice.choice((0, 0, 1, -1))
                return a_produce(dice, link_id, self._tokens, old=old, acks=acks)

    def _foresee(self, step: Any, direct: dict[Wire, None]) -> None:
        """Note what follows from a step.

        Args:
            step: the step.
            direct: gets the connections that took a request without an answer (acks=0) whole.
        """
        bench, begun = self.bench, self._tasks is not None
        if isinstance(step, steps.OpenLink):
            self._due += [("tasks.start_soon", self._sender._serve, step)] if begun else []
        elif isinstance(step, steps.Compress):
            self._due += [("tasks.start_soon", self._sender._compress, step)] if begun else []
        elif isinstance(step, steps.CloseLink):
            if step.link_id in bench.wires:
                self._due.append(("close", *step))
        else:
            rows = bench.foresee(step, self._now)
            self._due += rows
            if rows and rows[0][0] == "write":
                wire = bench.wires[step.link_id]
                silent = any(not asked.answered and not asked.refused for asked in wire.asked)
                if silent and wire.takes == "all" and not wire.queued:
                    direct[wire] = None

    # -- what connections bring

    def _open(self) -> None:
        """Have a connection that is open."""
        self._links += 1
        wire: Any = Wire(self.bench.log, self._links, self._dice)
        self.bench.wires[self._links] = wire
        self._sender._channels[self._links] = _Channel(self._links, wire)

    def _answer(self) -> None:
        """Let an answer come: a proper one, one that cannot be decoded, or one to no request."""
        bench, dice = self.bench, self._dice
        due = [(wire, wire.oldest) for wire in bench.wires.values()]
        if not due:
            return
        owing = [(wire, oldest) for wire, oldest in due if oldest is not None]
        wire, asked = dice.choice(owing or due)
        if asked is None or dice.random() < 0.1:
            self._bring(wire, 777, b"\0\0\0\0")
            self._due.append(("raised", errors.ProtocolError))
            return
        wire.asked.remove(asked)
        self._prepare()
        if not isinstance(asked.step, ANSWERED) or dice.random() < 0.1:
            self._refuse(wire, asked)
            return
        size = dice.choice((None, LONG_ANSWER, LONG_ANSWER + 1))
        frame, gist = answer_to(asked.step, asked.version, asked.number, size)
        if len(frame) > LONG_ANSWER and self._tasks is not None:
            self._due.append(("later",))
        else:
            self._due.append(("engine.on_answer", asked.step, gist, self._now, None))
            if dice.random() < 0.1:
                bench.misfit = errors.ProtocolError("it does not fit")
                self._due.append(("raised", bench.misfit))
            else:
                self._settle()
                self._deliver()
                bench.wakes = True
        self._bring(wire, asked.number, frame)

    def _refuse(self, wire: Wire, asked: Asked) -> None:
        """Let an answer come that cannot be decoded, which ends the connection."""
        if isinstance(asked.step, steps.SendProduce):
            facts = wire.link_id, asked.version, errors.ProtocolError, self._now
            self._due.append(("engine.on_undecodable", *facts))
        self._due.append(("raised", errors.ProtocolError))
        self._bring(wire, asked.number, asked.number.to_bytes(4))

    def _bring(self, wire: Wire, number: int, frame: bytes) -> None:
        """Give the Sender a frame, and note whether it raises, or reads the frame later."""
        log = self.bench.log
        try:
            rest: Any = self._sender._on_frame(self._sender._channels[wire.link_id], number, frame)
        except errors.ProtocolError as error:
            log.append(("raised", error))
            return
        if rest is not None:
            rest.close()
            log.append(("later",))

    def _move(self) -> None:
        """Let bytes move on a connection."""
        wire, dice = self._some_wire(), self._dice
        if wire is None:
            return
        del wire.queued[: dice.choice((0, 1, 1, 2, 9))]
        wire.sends_oldest = dice.random() < 0.5
        moved = dice.choice(((), (5,), (5, 0), (0, 7)))
        read = moved == (0, 7)
        self._due += self.bench.foresee_progress(wire, self._now, read=read)
        self._sender._on_progress(self._sender._channels[wire.link_id], *moved)

    def _end_one(self) -> None:
        """Let a connection end; the Sender is told of it later, and requests until then fail."""
        wire = self._some_wire()
        if wire is None or not wire.ended:
            if wire is not None:
                wire.ended = True
            return
        del self.bench.wires[wire.link_id]
        channel = self._sender._channels.pop(wire.link_id)
        cause = self._dice.choice((None, errors.KafkaConnectionError("cut")))
        unwritten = wire.unwritten()
        self._due += self.bench.foresee_loss(wire.link_id, cause, self._now, unwritten)
        self._sender._lost(wire.link_id, cause, channel.unwritten())

    def _lose_unopened(self) -> None:
        """Let a connection fail that was never open."""
        self._links += 1
        error = errors.KafkaConnectionError("nobody listens")
        self._due += self.bench.foresee_loss(self._links, error, self._now, [])
        self._sender._lost(self._links, error, ())

    def _compressed(self) -> None:
        """Let the compression of a batch end."""
        self._prepare()
        self._settle()
        self.bench.settle_now()
        result: Any = object()
        self._tokens += 1
        self._due.append(("engine.on_compressed", self._tokens, result))
        self._deliver()
        self.bench.wakes = True
        self._sender._on_compressed(steps.Compress(self._tokens, [], Codec.NONE, None), result)

    def _renew(self) -> None:
        """Let the user give new credentials."""
        self._due.append(("engine.on_new_credentials",))
        self._sender.on_new_credentials()

    # -- the end

    def _end(self) -> None:
        """End the producer, with its loop or after it: every record gets its outcome."""
        bench, dice, sender = self.bench, self._dice, self._sender
        self._prepare()
        self._settle()
        self._all = self._ended = True
        self._abandoned = dice.random() < 0.4
        raised = KeyboardInterrupt() if self._waiting and dice.random() < 0.5 else None
        if raised is not None:
            dice.choice(self._waiting)[1].raises = raised
        bench.steps = [steps.CloseLink(link_id, "idle") for link_id in [*bench.wires][:1]]
        if self._abandoned:
            self._waiters.clear()
            self._due.append(("engine.close", 0.0))
        else:
            sender.ended, sender._tasks = True, None
            self._due += [("watch.close", self._now), ("engine.close", self._now)]
            self._due += [("close", *step) for step in bench.steps]
            why = "the producer is closing"
            self._due += [("close", link_id, why) for link_id in bench.wires]
        self._deliver()
        self._due.append(("unseen.report_the_rest",))
        try:
            (sender.end_without_loop if self._abandoned else sender.shut)()
        except KeyboardInterrupt as error:
            bench.log.append(("raised", error))
        self._due += [] if raised is None else [("raised", raised)]
        if not sender.ended or (self._abandoned and sender.clock() != 0.0):
            bench.log.append(("not ended",))
