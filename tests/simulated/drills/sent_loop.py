"""The drill of the Sender's tasks: answers, time, calls that wait, and the end.

The tasks run on trio, in virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any, Final
from unittest import mock

import anyio
import anyio.lowlevel
import trio
from anyio.abc import TaskGroup
from trio.testing import MockClock, wait_all_tasks_blocked

from aioidem import errors
from aioidem._engine import steps
from aioidem._log import LogLine
from aioidem._producer import sender as sender_module
from aioidem._producer.sender import LONG_ANSWER
from aioidem._records import Codec

from .sent_parts import Asked, Row, Wire
from .sent_scene import FOR_EVER, Scene
from .sent_words import answer_to

__all__ = ["drill_loop"]

_OPS: Final = 12
_PIECES: Final = 5
"""In how many pieces a long Metadata answer is merged."""


def drill_loop(dice: Random) -> Iterator[str]:
    """Yield what the Sender's tasks do that does not follow from what has happened."""
    # trio draws the order of tasks: from here on the seed of the drill decides it.
    scheduler: Any = trio._core._run
    scheduler._r.seed(dice.random())
    clock = MockClock(autojump_threshold=0)
    scene = _Loop(dice, clock)
    options: dict[str, Any] = {"clock": clock}
    with scene.bench.listening(), mock.patch.object(sender_module, "Connection", scene):
        anyio.run(scene.play, backend="trio", backend_options=options)
    yield from scene.wrong[:1]


class _Loop(Scene):
    """A Sender with its tasks, and what happens to it."""

    async def play(self) -> None:
        """Let things happen until the Sender ends, or something is wrong."""
        ops: list[Callable[[], Awaitable[None]]] = [
            *[self._open, self._refuse, self._give_up, self._ask, self._answer, self._end_one],
            *[self._ask, self._answer, self._long, self._long, self._long],
            *[self._compress, self._sleep, self._stall, self._be_slow, self._wait, self._flow],
        ]
        with anyio.fail_after(FOR_EVER):
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._run)
                await wait_all_tasks_blocked()
                self._due.append(self._poll())
                self._compare("the first poll")
                for op in (self._open, *(self._dice.choice(ops) for _ in range(_OPS))):
                    await op()
                    await wait_all_tasks_blocked()
                    self._compare(op.__name__)
                    if self.wrong:
                        break
                else:
                    await self._end()
                self._tasks.cancel_scope.cancel()

    # -- answers

    async def _answer(self) -> None:
        await self._bring(long=False)

    async def _long(self) -> None:
        await self._bring(long=True)

    async def _bring(self, *, long: bool) -> None:
        """Let the oldest answer come, which may be long, or not what was asked for."""
        dice, bench = self._dice, self.bench
        wire, asked = await self._owing()
        wire.asked.remove(asked)
        produce = isinstance(asked.step, steps.SendProduce)
        size = LONG_ANSWER + 1 if long and not produce else None
        frame, gist = answer_to(asked.step, asked.version, asked.number, size)
        garbage = dice.random() < 0.2 or (long and produce)
        frame += bytes(LONG_ANSWER if long else 1) if garbage else b""
        wire.post[0].send_nowait((0, asked.number, frame))
        self._reading.seconds = seconds = dice.choice((0.0, 0.5))
        self._reading.none_left = none_left = dice.random() < 0.2
        whole = isinstance(asked.step, steps.FetchMetadata) and dice.random() < 0.7
        bench.merge = _Merge(bench.log, self._tasks) if long and whole else None
        if long:
            self._due.append(("reading.run",))
            await anyio.sleep(0.0 if none_left else seconds)  # virtual time
        await wait_all_tasks_blocked()
        now = anyio.current_time()
        if garbage:
            told = wire.link_id, asked.version, errors.ProtocolError, now
            self._due += [("engine.on_undecodable", *told)] if produce else []
            self._due += self._loss(wire, self._cause(errors.ProtocolError))
        else:
            merge = bench.merge
            if merge is not None:
                self._due += [*[("piece",)] * _PIECES, ("others run", True)]
            self._due.append(("engine.on_answer", asked.step, gist, now, merge))
            self._due.append(self._poll())
        bench.merge = None

    async def _compress(self) -> None:
        """Have a thread compress records."""
        self._compressing.seconds = seconds = self._dice.choice((0.0, 0.5))
        result: Any = object()
        await self._wake(steps.Compress(7, result, Codec.NONE, None))
        await anyio.sleep(seconds)  # virtual time
        await wait_all_tasks_blocked()
        self._due += [("engine.on_compressed", 7, result), self._poll()]

    # -- time

    async def _sleep(self) -> None:
        """Let time pass: the loop takes a turn at the earliest time that was set, and not later.

        `_plan` has, for each poll, in how many seconds the engine, the watch and the report of
        unseen errors are due. Besides, the loop is woken at some fixed times.
        """
        dice, now = self._dice, anyio.current_time()
        others = None, None, 0.5, 1.5, 3.0
        self._plan = [
            (dice.choice((-1.0, 0.0, *others)), dice.choice(others), dice.choice(others))
            for _ in range(3)
        ]
        wakes = [now, now + 0.375, now + 2.3125]
        at, plan = now, iter([*self._plan])
        alarm: float | None = None
        while True:
            self._due.append(self._poll(at))
            waits = next(plan, (None, None, None))
            self._due += [] if waits[2] is None else [("unseen.report", at)]
            times = [at + each for each in waits if each is not None]
            alarm = min((*times, *([] if alarm is None else [alarm])), default=None)
            wake = min((each for each in wakes if each > at), default=None)
            if alarm is not None and (wake is None or alarm < wake):
                at, alarm = max(at, alarm), None
            elif wake is not None:
                at = wake
            else:
                break
        for each in wakes:
            await anyio.sleep_until(each)
            await self._wake(polls=False)
        await anyio.sleep(20.0)  # virtual time

    async def _stall(self) -> None:
        """Block the event loop, while an answer arrives."""
        late = self._dice.choice((0.5, 1.0, 1.25, 4.0))
        wire, asked = await self._owing()
        wire.asked.remove(asked)
        frame, gist = answer_to(asked.step, asked.version, asked.number)
        self._plan = [(1.0, None, None)]
        await self._wake()
        await wait_all_tasks_blocked()
        # Arrived data reach the engine some turns later, and before the poll if that is late.
        passes = self._dice.randrange(2, 9) if late > 1.0 else 0
        wire.post[0].send_nowait((passes, asked.number, frame))
        self._clock.jump(1.0 + late)
        now = anyio.current_time()
        self._due += [("outcomes.event", LogLine.LOOP_BLOCKED, str)] if late > 1.0 else []
        self._due += [("engine.on_answer", asked.step, gist, now, None), self._poll()]

    async def _owing(self) -> tuple[Wire, Asked]:
        """Return a connection that owes an answer, and to what; ask something if there is none."""
        while True:
            for wire in self.bench.wires.values():
                if wire.oldest is not None:
                    return wire, wire.oldest
            for op in (self._ask, self._flow):
                await op()
                await wait_all_tasks_blocked()

    async def _be_slow(self) -> None:
        """Have outcomes left over for several turns, with slow callbacks: the loop is not late."""
        bench, now = self.bench, anyio.current_time()
        settlement = bench.settlement(["slow 1", "slow 2", "slow 3"])
        records: Any = settlement.records
        for record in records:
            record.seconds = 2.0
        bench.to_settle.append(settlement)
        self._sender.settled.at_once = 1
        self._plan = [(0.5, None, None)]
        self._tasks.start_soon(self._call, lambda: not bench.to_settle)
        await wait_all_tasks_blocked()
        await self._wake()
        self._due += [("observer.on_settled", settlement, now)] if bench.observed else []
        self._due += [("outcome", record.name, place) for place, record in enumerate(records)]
        self._due += [self._poll(now + 6.0), ("until",)]
        await wait_all_tasks_blocked()
        self._sender.settled.at_once = 2_000

    # -- calls that wait

    async def _call(self, condition: Callable[[], bool]) -> None:
        await self._sender.until(condition)
        self.bench.log.append(("until",))

    async def _wait(self) -> None:
        """Have calls wait for what holds already, comes to hold, or never does."""
        bench, now, held = self.bench, anyio.current_time(), [False]
        match self._dice.randrange(4):
            case 0:
                self._tasks.start_soon(self._call, lambda: True)
                self._due.append(("until",))
            case 1:
                bench.to_settle.append(bench.settlement(["untold"]))
                settlement = bench.to_settle[0]
                bench.settle_now()
                self._tasks.start_soon(self._call, lambda: True)
                self._due += [("observer.on_settled", settlement, now)] if bench.observed else []
                self._due += [("outcome", "untold", 0), self._poll(), ("until",)]
            case 2:
                self._tasks.start_soon(self._call, lambda: held[0])
                await wait_all_tasks_blocked()
                held[0] = True
                await self._wake()
                self._due.append(("until",))
            case _:
                with anyio.move_on_after(1.0):
                    await self._call(lambda: False)
                if self._sender._watchers:
                    self.wrong.append("a call that was cancelled still waits")

    # -- the end

    async def _end(self) -> None:
        """End the Sender: its task is cancelled, or a connection, engine or callback fails."""
        bench, dice, now, sender = self.bench, self._dice, anyio.current_time(), self._sender
        settlement = bench.settlement(["last"])
        self._tasks.start_soon(self._call, lambda: sender.ended)
        await wait_all_tasks_blocked()
        ended: Row = ("ended", RuntimeError)
        wires = list(bench.wires.values())
        causes = "cancelled", "connection", "engine", "callback"
        cause = dice.choice(causes if wires else (causes[0], *causes[2:]))
        bench.to_settle += [] if cause == "connection" else [settlement]
        if cause == "cancelled":
            bench.steps = [steps.Compress(7, [], Codec.NONE, None)]
            self._scope.cancel()
            ended = "ended", True
        elif cause == "connection":
            wires[0].post[0].send_nowait(RuntimeError("broken"))
        else:
            if cause == "engine":
                bench.poll_error = RuntimeError("broken")
            else:
                records: Any = settlement.records
                records[0].raises = KeyboardInterrupt("broken")
                ended = "ended", KeyboardInterrupt
            await self._wake()
        outcome: list[Row] = [("outcome", "last", 0)]
        if cause == "connection":
            outcome.clear()
        elif bench.observed:
            outcome.insert(0, ("observer.on_settled", settlement, now))
        self._due += outcome if cause == "callback" else []
        for wire in wires:
            self._due += self._loss(wire, None)[:-1]
        self._due += [] if ended[1] is True else [("engine.fatal", errors.InternalError)]
        self._due += [("threads.end",), ("reading.end",), ("watch.close", now)]
        self._due.append(("engine.close", now))
        self._due += [] if cause == "callback" else outcome
        self._due += [("unseen.report_the_rest",), ended, ("until",)]
        await wait_all_tasks_blocked()
        # The loop may take another turn before it is cancelled.
        for rows in (bench.log, self._due):
            rows[:] = [row for row in rows if row[0] != "engine.poll"]
        fatal = [str(row[1]) for row in bench.log if row[0] == "engine.fatal"]
        if any("broken" not in text for text in fatal):
            self.wrong.append(f"the producer ended with {fatal}, not with what was broken")
        self._compare("the end")
        if (sender.now(), sender.ended) != (bench.meters.now, True):
            told = f"ended: {sender.ended}, its clock: {sender.now()}"
            self.wrong.append(f"after the end, {told}, not True and {bench.meters.now}")


class _Merge:
    """Stands in for the merge of an answer in pieces, between which other tasks run."""

    def __init__(self, log: list[Row], tasks: TaskGroup) -> None:
        self._log, self._tasks = log, tasks
        self._passes = 0

    def slices(self) -> Iterator[int]:
        """Merge one piece after the other."""
        self._tasks.start_soon(self._run)
        for _ in range(_PIECES):
            self._log.append(("piece",))
            yield 1
        self._log.append(("others run", self._passes >= _PIECES - 2))

    async def _run(self) -> None:
        for _ in range(3 * _PIECES):
            self._passes += 1
            await anyio.lowlevel.checkpoint()
