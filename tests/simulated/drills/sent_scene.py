"""The scene of the Sender's tasks: its loop runs, and connections open and end.

With each thing that happens, the rows that must follow are written down.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import anyio
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from aioidem import errors
from aioidem._engine import steps

from .sent_bench import CLIENT, MOST_BYTES, SETUP_SECONDS, Bench
from .sent_parts import Row, Wire, alike, first_difference
from .sent_words import a_produce

__all__ = ["FOR_EVER", "Scene", "Threads"]

FOR_EVER: Final = 1e6
_IN_ANY_ORDER: Final = ("closed.record", "engine.on_link_lost", "watch.hurry", "line", "until")
"""Rows of the ends of connections: those of several connections may come in any order."""


class Threads:
    """Stands in for the threads of one kind.

    Attributes:
        seconds: how long a call takes, in virtual time.
        none_left: whether no thread can be started.
    """

    def __init__(self, name: str, log: list[Row]) -> None:
        self._name, self._log = name, log
        self.seconds = 0.0
        self.none_left = False

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread, so to speak."""
        self._log.append((f"{self._name}.run",))
        if self.none_left:
            raise RuntimeError("no more threads")
        await anyio.sleep(self.seconds)  # virtual time
        return function()

    async def compress(self, step: steps.Compress) -> Any:
        """Return something instead of the compressed records."""
        await anyio.sleep(self.seconds)  # virtual time
        return step.records

    def end(self) -> None:
        """Note that the threads are to end."""
        self._log.append((f"{self._name}.end",))


class Scene:
    """A Sender with its tasks, and what has happened."""

    def __init__(self, dice: Random, clock: MockClock) -> None:
        self._dice, self._clock = dice, clock
        self.bench = bench = Bench(dice)
        self._sender = sender = bench.sender
        sender.unseen, bench.on_time = bench.unseen, clock.jump
        bench.on_poll = self._polled
        self._reading = Threads("reading", bench.log)
        self._compressing = Threads("threads", bench.log)
        vars(sender).update(_reading=self._reading, _threads=self._compressing)
        self._due: list[Row] = [("engine.observe",)] if bench.observed else []
        self.wrong: list[str] = []
        self._links = 0
        # For each of the next polls, in how many seconds the engine, the watch and the report of
        # unseen errors are due.
        self._plan: list[tuple[float | None, ...]] = []
        # By port: how long a connection takes to open, and what comes of it.
        self._opens: dict[int, tuple[float, Any]] = {}
        self._tasks: Any = None
        self._scope = trio.CancelScope()

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._sender.run()
            self.bench.log.append(("ended", self._scope.cancelled_caught))
        except BaseExceptionGroup as group:
            self.bench.log.append(("ended", type(group.exceptions[0])))

    def _compare(self, what: str) -> None:
        """Compare what has happened with what was due; several connections end in any order."""
        told, due = self.bench.log, self._due
        wrong = first_difference(_in_order(told), _in_order(due))
        left = [row for row in told if row[0] in _IN_ANY_ORDER]
        for row in [row for row in due if row[0] in _IN_ANY_ORDER]:
            found = [each for each in left if alike(each, row)]
            wrong = wrong or (None if found else f"{row} has not happened, but {left}")
            left = [each for each in left if not found or each is not found[0]]
        wrong = wrong or (f"{left} has happened besides what was due, {due}" if left else None)
        if wrong is None and self._sender._opening:
            wrong = f"connections {self._sender._opening} are still being opened"
        if wrong is not None:
            self.wrong.append(f"{what} at {anyio.current_time()}: {wrong}")
        self.bench.log.clear()
        self._due.clear()

    def _polled(self) -> None:
        """Take the next times of the plan: when the engine, the watch and the report are due."""
        now = anyio.current_time()
        waits = self._plan.pop(0) if self._plan else (None, None, None)
        at = [None if wait is None else now + wait for wait in waits]
        self.bench.core.wake_at, self.bench.watch.wakes_at, self.bench.unseen.due_at = at

    def _poll(self, at: float | None = None) -> Row:
        """Return the row of a poll."""
        now = anyio.current_time() if at is None else at
        return "engine.poll", now, self.bench.wall * 1000

    async def _wake(self, *todo: steps.Step, polls: bool = True) -> None:
        """Have the engine give some steps at once."""
        self.bench.steps = [*todo]
        self._due += [self._poll()] if polls else []
        self._sender.wakeup.set()

    # -- connections

    async def open(self, connector: object, host: str, port: int, **options: Any) -> Any:
        """Stand in for `Connection.open`."""
        traffic = options.pop("traffic")
        node = [each for each, meter in self.bench.meters.nodes.items() if meter is traffic]
        known = connector is self.bench.connector, options.pop("sasl") is self._sender.sasl
        self.bench.log.append(("open", host, port, known, node, options))
        seconds, result = self._opens.pop(port)
        await anyio.sleep(seconds)  # virtual time
        if isinstance(result, Exception):
            raise result
        result.post = trio.open_memory_channel[Any](99)
        return result

    async def _begin(self, seconds: float, result: Any) -> int:
        """Have a connection opened, which takes some seconds."""
        link_id, bench = self._links, self.bench
        options = {"client_id": CLIENT, "setup_timeout": SETUP_SECONDS}
        options["max_frame_bytes"] = MOST_BYTES
        node: list[int] = []
        if self._dice.random() < 0.7:
            node = [100 + link_id]
            bench.core.connections.links[link_id] = SimpleNamespace(node_id=100 + link_id)
        self._opens[link_id] = seconds, result
        await self._wake(steps.OpenLink(link_id, "b1", link_id))
        self._due.append(("open", "b1", link_id, (True, True), node, options))
        if bench.sasl is not (self._sender.sasl is not None):
            self._due.append(("authenticates",))
        await wait_all_tasks_blocked()
        return link_id

    async def _open(self) -> None:
        self._links += 1
        wire = Wire(self.bench.log, self._links, self._dice)
        seconds = self._dice.choice((0.0, 0.5))
        link_id = await self._begin(seconds, wire)
        await anyio.sleep(seconds)  # virtual time
        self.bench.wires[link_id] = wire
        now, levels = anyio.current_time(), (9, 1) if wire.old else (14, 2)
        self._due.append(("meters.connected", now, self.bench.sasl))
        self._due.append(("engine.on_link_open", link_id, levels[0], now, levels[1]))
        self._due.append(self._poll())

    async def _refuse(self) -> None:
        """Let a connection fail before it is open."""
        self._links += 1
        refused = errors.AuthenticationFailedError("who are you?")
        error = self._dice.choice((OSError("odd"), refused, errors.KafkaConnectionError("nobody")))
        link_id = await self._begin(0.0, error)
        now = anyio.current_time()
        self._due += [("refused.record", 1, now)] if error is refused else []
        told: Any = error
        if isinstance(error, OSError):
            told = self._cause(errors.KafkaConnectionError)
            if "odd" not in str(told) or told.__cause__ is not error:
                self.wrong.append(f"{told!r} from {error!r}")
        self._due += self.bench.foresee_loss(link_id, told, now, [])
        self._due.append(self._poll())

    async def _give_up(self) -> None:
        """Have the engine give up a connection that is being opened, or close an open one."""
        if self._dice.random() < 0.5:
            link_id = self._dice.choice(list(self.bench.wires) or [0])
            await self._wake(steps.CloseLink(link_id, "idle"))
            self._due += [("close", link_id, "idle")] if link_id else []
            return
        self._links += 1
        await self._wake(steps.CloseLink(await self._begin(FOR_EVER, None), "idle"))

    async def _ask(self) -> None:
        """Have the engine ask something on a connection."""
        if not self.bench.wires:
            await self._open()
            await wait_all_tasks_blocked()
        wire = self._dice.choice(list(self.bench.wires.values()))
        token, dice = 1000 + 10 * wire.link_id + len(wire.asked), self._dice
        asks: list[Any] = [
            steps.FetchMetadata(wire.link_id, token, ("t",), False),
            steps.AskCluster(wire.link_id, token),
            a_produce(dice, wire.link_id, token, old=wire.old, acks=dice.choice((0, -1))),
        ]
        wire.takes = dice.choice(("all", "none"))
        step, now = dice.choice(asks), anyio.current_time()
        self.bench.wakes = False
        await self._wake(step)
        self._due += self.bench.foresee(step, now)
        silent = any(not each.answered for each in wire.asked)
        if silent and wire.takes == "all" and not wire.queued:
            self._due += self.bench.foresee_progress(wire, now)
            self._due += [self._poll()] if self.bench.wakes else []

    async def _end_one(self) -> None:
        """Let a connection end by itself."""
        if self.bench.wires:
            wire = self._dice.choice(list(self.bench.wires.values()))
            cause = self._dice.choice((None, errors.KafkaConnectionError("cut")))
            wire.post[0].send_nowait(cause)
            self._due += self._loss(wire, cause)

    def _loss(self, wire: Wire, cause: Exception | None) -> list[Row]:
        """Return what follows from the end of an open connection."""
        del self.bench.wires[wire.link_id]
        now = anyio.current_time()
        rows = self.bench.foresee_loss(wire.link_id, cause, now, wire.unwritten())
        return [("closed.record", 1, now), *rows, self._poll()]

    def _cause(self, kind: type[Exception]) -> Any:
        """Return why a connection ended as the engine was told, if it is an error of a kind."""
        lost = [row[2] for row in self.bench.log if row[0] == "engine.on_link_lost"]
        return lost[0] if lost and isinstance(lost[0], kind) else kind("another one")

    async def _flow(self) -> None:
        """Let a socket take all that waits."""
        for wire in [each for each in self.bench.wires.values() if each.queued][:1]:
            wire.queued.clear()
            wire.sends_oldest = self._dice.random() < 0.5
            wire.post[0].send_nowait("flow")
            self.bench.wakes = False
            self._due += self.bench.foresee_progress(wire, anyio.current_time())
            self._due += [self._poll()] if self.bench.wakes else []


def _in_order(rows: list[Row]) -> list[Row]:
    """Leave out what may come in any order, and polls that follow another at the same time."""
    left = [row for row in rows if row[0] not in _IN_ANY_ORDER]
    again = [row[0] == "engine.poll" and row == before for before, row in pairwise([("",), *left])]
    return [row for row, repeated in zip(left, again, strict=True) if not repeated]
