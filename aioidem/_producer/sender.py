"""The Sender: the one loop that awaits. It drains the engine's `RecordAccumulator` turn by turn.

Each turn asks the engine what to do (`ProducerCore.poll`, which drains the accumulator into Produce
requests), does it, and reports what happened.

It decides nothing: no error code is looked at here, no retry, no timeout. It turns steps into
frames, frames into plain answers, and a dead connection into `on_link_lost` with the requests whose
write never began.

Invariants
- Outcomes are delivered between polls, never inside one, so a user's callback may call
  `send_nowait`. Where they are too many for one turn of the loop
  (`settled_records`), the next poll waits for the last of them, and so does what watches the
  engine's state: `flush` returns when all were delivered.
- No answer holds the loop: a long one is read in a thread, and given to the engine in pieces where
  that takes long too. Later answers of its connection wait for it, so the order stays.
- If anything here or in the engine raises what it should not, every record is settled before the
  task ends: a defect of ours must fail loudly, not hang its callers.

Rejected: a task per broker with a queue each; the engine's answer to "what now?" is one list, and
one loop performing it keeps the order of writes on a connection the order the engine chose.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskGroup

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import ProducerCore, steps
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.record import Settlement
from aioidem._network.allowed import limited
from aioidem._network.connection import Connection
from aioidem._network.sasl.client import sasl_client
from aioidem._network.tls import secured
from aioidem._network.transport import Connector
from aioidem._network.waiting import Signal, Wakeup, new_signal
from aioidem._producer import questions
from aioidem._producer.observer import BatchReporter
from aioidem._producer.questions import Question
from aioidem._producer.settled_records import SettledRecords
from aioidem._producer.unseen import UnseenFailures
from aioidem._protocol.answer_limits import answer_limit, produce_answer_limit
from aioidem._protocol.frames import FrameLimit
from aioidem._protocol.messages import encode_request
from aioidem._protocol.produce import (
    ProduceAnswer,
    decode_produce_response,
    encode_produce_request,
)
from aioidem._protocol.versions import ApiKey

__all__ = ["LONG_ANSWER", "Alarm", "Sender"]

logger = logging.getLogger("aioidem")

_STALL = 1.0
"""Seconds by which an alarm must be late for the loop to have been stalled."""

LONG_ANSWER: Final = 1 << 15
"""Bytes of an answer that is read in a thread: one of this size takes about 10 ms."""

_CATCH_UP_ROUNDS = 10
"""Turns of the loop that a ready answer needs, at most, to get from its socket to the engine."""


class Alarm:
    """Raises a wakeup at a time.

    Moving the time later is free: an early alarm is only an early poll.
    """

    __slots__ = ("_at", "_rearm", "_wakeup")

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._at: float | None = None
        self._rearm = Wakeup()

    def set(self, at: float | None) -> None:
        """Be sure to wake at `at` or before."""
        if at is not None and (self._at is None or at < self._at):
            self._at = at
            self._rearm.set()

    async def run(self) -> None:
        """Serve for ever; cancel it to end."""
        while True:
            at = self._at
            if at is None:
                await self._rearm.wait()
                continue
            with anyio.CancelScope(deadline=at):  # anyio 4.8 has no move_on_at
                await self._rearm.wait()
                continue
            self._at = None
            self._wakeup.set()


class _Asked:
    """A request written to a connection: the step it is of, and how its answer is read.

    `read` turns a frame into plain data and touches nothing else, so it may run in a thread.
    """

    __slots__ = ("read", "step")

    def __init__(self, step: steps.Request, read: Callable[[bytes], Any]) -> None:
        self.step = step
        self.read = read


class _Channel:
    """One open connection, with what was asked on it."""

    __slots__ = ("asked", "connection", "link_id", "refused", "unanswered")

    def __init__(self, link_id: int, connection: Connection) -> None:
        self.link_id = link_id
        self.connection = connection
        self.asked: dict[int, _Asked] = {}
        # Requests the connection would not take any more: never written.
        self.refused: list[int] = []
        # acks=0: (correlation id, token), told apart once they are on their way.
        self.unanswered: deque[tuple[int, int]] = deque()

    def unwritten(self) -> list[int]:
        """Tokens of the requests of which no byte can have left."""
        started = self.connection.started
        never = [asked.step.token for cid, asked in self.asked.items() if not started(cid)]
        return [
            *never,
            *(token for cid, token in self.unanswered if not started(cid)),
            *self.refused,
        ]


class Sender:
    """Performs the engine's steps.

    Args:
        core: the engine.
        config: its options.
        connector: how to open streams; TLS is put around them where the options have it.
        wall_clock: seconds since the epoch, the clock that stamps records.
        observer: receives the facts of batches.
    """

    def __init__(
        self,
        core: ProducerCore,
        config: ProducerConfig,
        connector: Connector,
        wall_clock: Callable[[], float] = time.time,
        observer: BatchReporter | None = None,
    ) -> None:
        self._wall_clock = wall_clock
        self._observer = observer
        self._core = core
        self._produce = core.produce
        if observer is not None:
            self._produce.observe()
        self._config = config
        self._connector = secured(limited(connector, config), config)
        self.sasl = sasl_client(config)
        self._outcomes = core.outcomes
        self._accumulator = core.accumulator
        self.settled = SettledRecords(
            self._outcomes.take_settled, None if observer is None else self._announce
        )
        self.unseen = UnseenFailures(config.client_id)
        self._channels: dict[int, _Channel] = {}
        self._opening: dict[int, anyio.CancelScope] = {}
        self._watchers: list[tuple[Callable[[], bool], Signal]] = []
        self._tasks: TaskGroup | None = None
        # One long answer at a time, whoever sends it: this bounds what they take of the machine.
        self._reading: anyio.CapacityLimiter | None = None
        self.ended = False
        # The loop's own, once there is a loop: finding it out anew costs a tenth of a request. The
        # simulation has a clock of its own, without a loop.
        self.clock: Callable[[], float] = anyio.current_time
        self.wakeup = Wakeup()
        self._alarm = Alarm(self.wakeup)

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._alarm.run)
                while True:
                    self._turn()
                    await self.wakeup.wait()
                    await self._catch_up()
        except Exception as error:
            self._core.fatal(errors.InternalError(f"the background task failed: {error!r}"))
            raise
        finally:
            self._tasks = None
            self.ended = True  # before the last outcomes, so that whoever waits looks again
            self.shut()

    async def _catch_up(self) -> None:
        """Let what the sockets have ready be read before anything is called overdue.

        It matters after a stall of the loop: a blocking call, a suspended process.
        """
        wake_at = None if self.settled.pending else self._core.wake_at
        if wake_at is not None and self.clock() - wake_at > _STALL:
            for _ in range(_CATCH_UP_ROUNDS):
                await anyio.lowlevel.checkpoint()

    def _turn(self) -> None:
        if not self._begin_turn():
            return
        for step in self._core.poll(self.clock(), self._wall_clock() * 1000.0):
            self._perform(step)
        self._alarm.set(self._core.wake_at)
        self.deliver()
        self._alarm.set(self.unseen.due_at)

    def _begin_turn(self) -> bool:
        """Deliver what the last turn has left.

        Returns:
            False if outcomes are still left: then the engine is not polled in this turn.
        """
        self.settled.begin_turn()
        if not self.settled.pending:
            return True
        self.deliver()
        return not self.settled.pending

    def deliver(self) -> None:
        """Deliver outcomes to their callers, log events, and wake those who watch the engine.

        What is too much for this turn of the loop is left to the next one.
        """
        if self._observer is not None:
            for entry in self._produce.take_dispatched():
                self._observer.on_dispatched(entry)
        if not self.settled.tell():
            self.wakeup.set()
            return
        if self.unseen.due_at is not None and not self._accumulator.assigning:
            self.unseen.report(self.clock())
        for event in self._outcomes.take_events():
            logger.warning("%s: %s", self._config.client_id, event)
        for note in self._outcomes.take_notes():
            logger.info("%s: %s", self._config.client_id, note)
        if self._watchers:
            self._watchers = [watcher for watcher in self._watchers if not _notify(watcher)]

    def _announce(self, settlement: Settlement) -> None:
        if self._observer is not None:
            self._observer.on_settled(settlement, self.clock())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the engine's state holds, and all its outcomes are delivered.

        Bound it from outside.
        """
        if condition():
            if not self.settled.untold:
                await anyio.lowlevel.checkpoint()
                return
            self.wakeup.set()
        watcher = (condition, new_signal())
        self._watchers.append(watcher)
        try:
            await watcher[1].wait()
        finally:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

    def shut(self) -> None:
        """End everything: settle what is left, drop the connections.

        It is a plain function, so that it cannot be cancelled.
        """
        self.settled.all_at_once()
        for step in self._core.close(self.clock()):
            self._perform(step)
        for channel in self._channels.values():
            channel.connection.close_soon("the producer is closing")
        self.deliver()
        self.unseen.report_the_rest()

    def end_without_loop(self) -> None:
        """End the producer after its event loop was closed: every record gets an outcome.

        Nothing of the loop's is touched; its sockets close with it.
        """
        self.ended = True
        self.clock = lambda: 0.0  # the loop's own may be gone with it
        self._watchers.clear()
        self.settled.all_at_once()
        self._core.close(0.0)
        self.deliver()
        self.unseen.report_the_rest()

    # -- steps -------------------------------------------------------------------------------------

    def _perform(self, step: steps.Step) -> None:
        match step:
            case steps.SendProduce():
                self._send_produce(step)
            case steps.OpenLink():
                if self._tasks is not None:
                    self._tasks.start_soon(self._serve, step)
            case steps.CloseLink(link_id, reason):
                self._close(link_id, reason)
            case steps.FetchMetadata():
                self._ask(step, questions.metadata(step))
            case steps.AskCluster():
                self._ask(step, questions.cluster())
            case steps.InitProducerId():
                self._ask(step, questions.producer_id())
            case steps.DescribeTopicConfig():
                self._ask(step, questions.config_of_topic(step))
            case steps.DescribeTopicLimit():
                self._ask(step, questions.limit_of_topic(step, self._config.compression_type))
            case steps.DescribeBrokerConfig():
                self._ask(step, questions.config_of_broker(step))
            case steps.AskProducers():
                self._ask(step, questions.producers(step))
            case steps.ReadBack():
                self._ask(step, questions.read_back(step))
            case steps.FindCoordinator():
                self._ask(step, questions.find_coordinator(step))
            case steps.InitTransactions():
                self._ask(step, questions.init_transactions(step))
            case steps.AddPartitions():
                self._ask(step, questions.add_partitions(step))
            case steps.AddOffsets():
                self._ask(step, questions.add_offsets(step))
            case steps.CommitOffsets():
                self._ask(step, questions.commit_offsets(step))
            case steps.EndTransaction():
                self._ask(step, questions.end_transaction(step))

    def _send_produce(self, step: steps.SendProduce) -> None:
        channel = self._channels.get(step.link_id)
        if channel is None:
            return
        correlation_id = channel.connection.next_correlation_id()
        frame = encode_produce_request(
            step.version,
            correlation_id=correlation_id,
            client_id=self._config.client_id,
            transactional_id=step.transactional_id,
            acks=step.acks,
            timeout_ms=step.timeout_ms,
            topics=[(topic.name, topic.topic_id, topic.partitions) for topic in step.topics],
        )
        answered = step.acks != 0
        if answered:
            read = partial(_read_produce_answer, step.version)
            channel.asked[correlation_id] = _Asked(step, read)
        else:
            channel.unanswered.append((correlation_id, step.token))
        limit = None
        if answered:
            partitions = sum(len(topic.partitions) for topic in step.topics)
            limit = produce_answer_limit(partitions, step.records, self._config.max_frame_bytes)
        self._write(channel, frame, correlation_id, step.token, limit)

    def _ask(self, step: steps.Request, asked: Question) -> None:
        channel = self._channels.get(step.link_id)
        if channel is None:
            return
        try:
            version = channel.connection.versions.choose(
                asked.api_key, at_least=asked.at_least, at_most=asked.at_most
            )
        except errors.IncompatibleBrokerVersion as error:
            self._core.on_unsupported(step, error, self.clock())
            self.wakeup.set()
            return
        correlation_id = channel.connection.next_correlation_id()
        channel.asked[correlation_id] = _Asked(step, asked.reader(version))
        frame = encode_request(
            asked.make(version), correlation_id=correlation_id, client_id=self._config.client_id
        )
        limit = answer_limit(asked.api_key, self._config.max_frame_bytes)
        self._write(channel, frame, correlation_id, step.token, limit)

    def _write(
        self,
        channel: _Channel,
        frame: bytes,
        correlation_id: int,
        token: int,
        limit: FrameLimit | None,
    ) -> None:
        """Queue a request whose answer may be so long; None: it gets none."""
        try:
            channel.connection.write(
                frame,
                correlation_id=correlation_id,
                expects_response=limit is not None,
                limit=limit,
            )
        except errors.KafkaConnectionError:
            # It ended a moment ago; `on_link_lost` follows and needs to know that this never left.
            channel.asked.pop(correlation_id, None)
            channel.refused.append(token)

    # -- connections -------------------------------------------------------------------------------

    async def _serve(self, step: steps.OpenLink) -> None:
        """Serve one connection, from its opening to its end."""
        connection: Connection | None = None
        version = transaction_version = 0
        with anyio.CancelScope() as scope:
            self._opening[step.link_id] = scope
            try:
                connection = await Connection.open(
                    self._connector,
                    step.host,
                    step.port,
                    client_id=self._config.client_id,
                    setup_timeout=self._config.connection_setup_timeout,
                    max_frame_bytes=self._config.max_frame_bytes,
                    sasl=self.sasl,
                )
                version = connection.versions.choose(ApiKey.PRODUCE)
                transaction_version = connection.versions.transaction_version
            except errors.KafkaError as error:
                self._lost(step.link_id, error, ())
            finally:
                del self._opening[step.link_id]
        if connection is None:
            return
        channel = _Channel(step.link_id, connection)
        self._channels[step.link_id] = channel
        self._core.on_link_open(step.link_id, version, self.clock(), transaction_version)
        self.wakeup.set()
        cause: Exception | None = None
        try:
            cause = await connection.run(
                lambda correlation_id, frame: self._on_frame(channel, correlation_id, frame),
                lambda _written, _read: self._on_progress(channel),
            )
        finally:
            del self._channels[step.link_id]
            self._lost(step.link_id, cause, channel.unwritten())

    def _on_frame(
        self, channel: _Channel, correlation_id: int, frame: bytes
    ) -> Awaitable[None] | None:
        asked = channel.asked.pop(correlation_id, None)
        if asked is None:
            raise errors.ProtocolError(f"an answer to {correlation_id}, which expects none")
        # Without a loop, as in the simulation, nobody waits while it is read.
        if len(frame) > LONG_ANSWER and self._tasks is not None:
            return self._on_long_frame(channel, asked, frame)
        try:
            answer = asked.read(frame)
        except errors.ProtocolError as error:
            self._undecodable(channel, asked, error)
            raise
        self._answered(asked, answer)
        return None

    async def _on_long_frame(self, channel: _Channel, asked: _Asked, frame: bytes) -> None:
        if self._reading is None:
            self._reading = anyio.CapacityLimiter(1)
        try:
            # The thread is given up when the connection ends: it has its bound in the frame's.
            answer = await anyio.to_thread.run_sync(
                asked.read, frame, abandon_on_cancel=True, limiter=self._reading
            )
        except errors.ProtocolError as error:
            self._undecodable(channel, asked, error)
            raise
        merge = self._core.merge_of(asked.step, answer)
        if merge is not None:
            for _ in merge.slices():
                await anyio.lowlevel.checkpoint()
        self._answered(asked, answer, merge)

    def _answered(self, asked: _Asked, answer: Any, merge: MetadataMerge | None = None) -> None:
        """Give an answer to the engine.

        Raises:
            ProtocolError: it is none to this request; the connection is to be closed.
        """
        odd = self._core.on_answer(asked.step, answer, self.clock(), merge)
        if odd is not None:
            raise odd
        self.deliver()
        self.wakeup.set()

    def _undecodable(self, channel: _Channel, asked: _Asked, error: errors.ProtocolError) -> None:
        if isinstance(asked.step, steps.SendProduce):
            self._core.on_undecodable(channel.link_id, asked.step.version, error, self.clock())

    def _on_progress(self, channel: _Channel) -> None:
        now = self.clock()
        self._core.on_progress(channel.link_id, now)
        while channel.unanswered and channel.connection.started(channel.unanswered[0][0]):
            _, token = channel.unanswered.popleft()
            self._produce.on_written_unanswered(channel.link_id, token, now)
            self.wakeup.set()

    def _lost(
        self, link_id: int, error: Exception | None, unwritten: list[int] | tuple[()]
    ) -> None:
        if error is not None:
            # What retrying does not heal is for an operator to see.
            refused = isinstance(
                error, errors.AuthenticationFailedError | errors.BrokerNotAllowedError
            )
            level = logging.WARNING if refused else logging.INFO
            logger.log(level, "%s: connection %d: %s", self._config.client_id, link_id, error)
        self._core.on_link_lost(link_id, error, self.clock(), unwritten)
        self.wakeup.set()

    def _close(self, link_id: int, reason: str) -> None:
        channel = self._channels.get(link_id)
        if channel is not None:
            channel.connection.close_soon(reason)
        scope = self._opening.get(link_id)
        if scope is not None:
            scope.cancel()


def _read_produce_answer(version: int, frame: bytes) -> ProduceAnswer:
    return decode_produce_response(version, frame)[1]


def _notify(watcher: tuple[Callable[[], bool], Signal]) -> bool:
    condition, signal = watcher
    if not condition():
        return False
    signal.set()
    return True
