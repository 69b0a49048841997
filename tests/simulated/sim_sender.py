"""The real Sender, driven without an event loop: `World` calls it, and no task waits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._flight.recorder import FlightRecorder
from aioidem._network.transport import TcpConnector
from aioidem._network.waiting import Wakeup
from aioidem._producer.compressing import compressed
from aioidem._producer.observer import BatchReporter
from aioidem._producer.sender import _Channel
from aioidem._protocol.frames import FrameLimit
from aioidem._protocol.messages import correlation_id_of
from aioidem._protocol.versions import ApiKey
from aioidem.testing import Anomaly

from .line_tap import LineTap
from .sim_connection import SimConnection
from .sim_core import SimCore

if TYPE_CHECKING:
    from .world import World

__all__ = ["MOVED", "SPIN", "SimSender"]

SPIN = 300
"""After how many turns at one instant the Sender, or the run, is said never to wait."""
# Seconds after which a producer looks for incidents again, at the latest.
_LOOKS_EVERY = 1.0
MOVED = re.compile(r"the cluster changed from (\S+) to (\S+): ")
"""Begins the line for the log when the producer moves from one cluster to another."""


class _Raised(Wakeup):
    """A wakeup for which no task waits."""

    raised = False

    def set(self) -> None:
        self.raised = True


class SimSender(LineTap):
    """The Sender without an event loop."""

    def __init__(
        self,
        core: SimCore,
        config: ProducerConfig,
        world: World,
        flight: FlightRecorder | None = None,
    ) -> None:
        observer = None if world.observed is None else BatchReporter(world.observed)
        wall_clock = world.client_wall
        super().__init__(core, config, TcpConnector(), wall_clock, observer, flight)
        self.clock = lambda: world.now
        self.settled.at_once = world.schedule.at_once[0]
        # The same number on every machine: the Sender's own number depends on the cores.
        core.accumulator.drafts.at_once = 3
        self.wakeup: _Raised = _Raised()
        self._world = world
        self._numbers = core.numbers
        self._cancelled: set[int] = set()

    def turn(self) -> None:
        """Run turns of the Sender's loop until it would wait."""
        for _ in range(SPIN):
            self.wakeup = _Raised()
            self._one_turn()
            if not self.wakeup.raised:
                return
        self._world.report(Anomaly.STUCK, "the Sender never waits")

    def _one_turn(self) -> None:
        if not self._begin_turn():
            return
        for step in self._engine.poll(self.clock(), self._wall_clock() * 1000.0):
            # The outcomes of this poll are delivered first; the next steps may rely on them.
            self.deliver()
            self._world.trace_step(step)
            self._perform(step)
        looks = self.clock() >= self._watch.due_at
        if looks:
            self._watch.look(self.clock())
            if self._watch.due_at > self.clock() + _LOOKS_EVERY:
                self._world.report(Anomaly.STUCK, "an operator learns of nothing for too long")
        self.deliver()
        if self._world.observed is not None:
            self._world.observed.turned()
        if looks and self._config.acks != 0:  # without answers the wire shows no doubt
            self._world.core.numbers.lines.looked(self._world.doubts(), self.clock())
        if self._flight is not None:
            self._flight.attend()
        self._note_turn((self.clock(), self.clock()))
        self._numbers.turned(self.clock())

    def deliver(self) -> None:
        """Deliver as usual, and pass the producer's events to the judges and to `World.event`."""
        lines = self._new_lines()
        if any(MOVED.match(line.text) for line in lines) and len(self._world.clusters) > 1:
            self._world.finds_another_cluster()
        for line in lines:
            self._world.unknowns.logged(line.text)
        self._world.note_settled(self._core.outcomes.peek_settled())
        for line in lines:
            self._numbers.logged(line)
        super().deliver()
        for line in lines:
            self._world.event(line.text)

    def _perform(self, step: steps.Step) -> None:
        match step:
            case steps.OpenLink():
                self._world.connect(step)
            case steps.CloseLink(link_id, _):
                self._cancelled.add(link_id)
                super()._perform(step)
            case steps.SendProduce():
                if self._world.observed is not None:
                    self._world.observed.writes(step)
                super()._perform(step)
            case steps.FetchMetadata(link_id, token):
                self._world.freshness.asked(link_id, token, self.clock())
                super()._perform(step)
            case steps.Compress():
                self._world.compress(step)
            case _:
                super()._perform(step)

    def _write(
        self,
        channel: _Channel,
        frame: bytes,
        correlation_id: int,
        token: int,
        limit: FrameLimit | None,
    ) -> None:
        self._world.watch.sent(channel.link_id, token, frame[4:])
        super()._write(channel, frame, correlation_id, token, limit)

    def compressed(self, step: steps.Compress) -> None:
        """Compress a batch and report it to the engine, as if a thread had compressed it."""
        self._on_compressed(step, compressed(step))

    def link_refused(self, link_id: int, error: errors.KafkaError) -> bool:
        """Handle the failure of an attempt to connect; return False if it was given up before."""
        if link_id in self._cancelled:
            return False
        self._lost(link_id, error, ())
        return True

    def link_opened(self, link_id: int, connection: SimConnection) -> None:
        """Handle a connection that has just been opened."""
        if link_id in self._cancelled:
            connection.open = False
            return
        stand_in: Any = connection
        self._channels[link_id] = _Channel(link_id, stand_in)
        version = connection.versions.choose(ApiKey.PRODUCE)
        self._engine.on_link_open(link_id, version, self.clock())

    def link_ended(self, link_id: int, cause: Exception | None) -> None:
        """Handle the end of a connection, as the last lines of `Sender._serve` do."""
        channel = self._channels.pop(link_id, None)
        if channel is not None:
            # If the engine gave the connection up itself, it treats all of its requests as written.
            known = link_id in self._core.connections.links
            unwritten = channel.unwritten() if known else []
            self._world.watch.lost(link_id, unwritten)
            if unwritten:
                self._world.core.numbers.taken_back()
            self._lost(link_id, cause, unwritten)

    def link_frame(self, link_id: int, payload: bytes) -> Exception | None:
        """Handle an answer; the connection ends if an error is returned."""
        channel = self._channels.get(link_id)
        if channel is None:
            return None
        try:
            correlation_id = correlation_id_of(payload)
            self._world.connections[link_id].answered = correlation_id
            self._engine.on_progress(link_id, self.clock())
            if channel.asked and correlation_id != next(iter(channel.asked)):
                return errors.ProtocolError("an answer out of turn")
            self._world.watch.received(link_id, payload)
            self._on_frame(channel, correlation_id, payload)
        except errors.ProtocolError as error:
            return error
        return None

    def link_progress(self, link_id: int) -> None:
        """Note that bytes have left on a connection."""
        channel = self._channels.get(link_id)
        if channel is not None:
            self._on_progress(channel)
