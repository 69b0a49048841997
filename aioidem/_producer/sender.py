"""Sender: the one loop that does a producer's IO, as the engine decides.

In each turn the loop asks the engine (`ProducerCore.poll`) for its next steps: requests to send and
connections to open, among others. It performs the steps, and reports to the engine what happened.

The Sender decides nothing: error codes, retries and timeouts are the engine's. It turns steps into
frames and frames into plain answers. When a connection has ended, the Sender tells the engine
(`on_link_lost`), and names the requests that were never written.

Invariants:

- Outcomes are delivered between polls, never inside one, so a user's callback may call
  `send_nowait`. If there are too many outcomes for one turn (`settled_records`), the engine is not
  polled before the last outcome is delivered. Until then calls that wait for the engine's state,
  such as `flush`, do not return either.
- No answer blocks the event loop for long: a long answer is decoded in a thread, and merged into
  the engine's state in pieces. Later answers of the same connection wait, so their order is kept.
- Nor does the compression of a large batch: it is done in a thread (`compressing`). The engine
  keeps the order of batches, whichever thread is the first to finish.
- If this module or the engine raises an unexpected exception, every record gets an outcome before
  the task ends, so that no caller waits for ever.

Rejected: a task with a queue for each broker. The engine returns one list of steps, and one loop
writes to each connection in the order of that list.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any, Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import ProducerCore, steps
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.settlement import Settlement
from aioidem._flight.recorder import FlightRecorder
from aioidem._log import LogLine, write
from aioidem._network.allowed import limited
from aioidem._network.connection import Connection
from aioidem._network.sasl.client import sasl_client
from aioidem._network.threads import Threads
from aioidem._network.tls import secured
from aioidem._network.transport import Connector
from aioidem._network.waiting import Signal, Wakeup, new_signal
from aioidem._producer import questions
from aioidem._producer.compressing import CompressionThreads
from aioidem._producer.observer import BatchReporter
from aioidem._producer.questions import Question
from aioidem._producer.runtime import without_cancellation
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
from aioidem._records import BatchBody

__all__ = ["LONG_ANSWER", "Alarm", "Sender"]

_STALL = 1.0
"""If the loop wakes this many seconds late, something has blocked it."""

LONG_ANSWER: Final = 1 << 15
"""Answers of more bytes are decoded in a thread; one of this size takes about 10 ms."""

_CATCH_UP_ROUNDS = 10
"""The most turns of the event loop that it takes until data in a socket reaches the engine."""


class Alarm:
    """Wakes the Sender's loop at a given time.

    `set` never moves the time to a later one. To be woken too early does no harm: the loop asks the
    engine for steps, and there are none.
    """

    __slots__ = ("_at", "_rearm", "_wakeup")

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup = wakeup
        self._at: float | None = None
        self._rearm = Wakeup()

    def set(self, at: float | None) -> None:
        """Make sure that the loop is woken at this time or earlier; None changes nothing."""
        if at is not None and (self._at is None or at < self._at):
            self._at = at
            self._rearm.set()

    async def run(self) -> None:
        """Wake the loop at each time that was set, until cancelled."""
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


_Asked = tuple[steps.Request, Callable[[bytes], Any]]
"""A request on a connection: the engine's step that asked for it, and the answer's decoder.

The decoder turns the answer's frame into plain data and changes nothing, so it may run in a thread.
"""


class _Channel:
    """One open connection, with the requests that are unanswered on it."""

    __slots__ = ("asked", "connection", "link_id", "refused", "unanswered")

    def __init__(self, link_id: int, connection: Connection) -> None:
        self.link_id = link_id
        self.connection = connection
        self.asked: dict[int, _Asked] = {}
        # The tokens (the engine's request ids) of requests that came when the connection had ended.
        self.refused: list[int] = []
        # The requests with acks=0, which the broker does not answer. Each stays here, as
        # (correlation id, token), until its write has begun.
        self.unanswered: deque[tuple[int, int]] = deque()

    def refuse(self, correlation_id: int, token: int) -> None:
        """Note that the latest request came when the connection had ended: it was never written."""
        self.asked.pop(correlation_id, None)
        if self.unanswered and self.unanswered[-1][0] == correlation_id:
            self.unanswered.pop()
        self.refused.append(token)

    def unwritten(self) -> list[int]:
        """Return the tokens of the requests of which no byte was sent."""
        started = self.connection.started
        never = [step.token for cid, (step, _) in self.asked.items() if not started(cid)]
        return [
            *never,
            *(token for cid, token in self.unanswered if not started(cid)),
            *self.refused,
        ]


class Sender:
    """Performs the engine's steps on connections, and reports what happens there.

    Args:
        core: The engine.
        config: The producer's options.
        connector: Opens streams; TLS is added if the options ask for it.
        wall_clock: Returns seconds since the epoch, by the clock that stamps records.
        observer: Receives facts about batches; None if the producer has no observer.
        flight: Keeps what the engine is told; None if nothing is kept.
    """

    def __init__(
        self,
        core: ProducerCore,
        config: ProducerConfig,
        connector: Connector,
        wall_clock: Callable[[], float] = time.time,
        observer: BatchReporter | None = None,
        flight: FlightRecorder | None = None,
    ) -> None:
        self._wall_clock = wall_clock
        self._observer = observer
        self._core = core
        # Whom to tell what happened: the engine, or the recorder that passes it on.
        self._flight = flight
        self._engine = core if flight is None else flight
        self._produce = core.produce if flight is None else flight
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
        self._watch = core.watch
        self._meters, self._connections = core.meters, core.connections
        self._note_turn = self._meters.turns.append
        self._channels: dict[int, _Channel] = {}
        # Connections whose socket took a request with acks=0 at once, while a poll's steps were
        # performed. Its records are settled after the last step, never between two steps.
        self._sent_directly: dict[_Channel, None] = {}
        self._opening: dict[int, anyio.CancelScope] = {}
        self._watchers: list[tuple[Callable[[], bool], Signal]] = []
        self._tasks: TaskGroup | None = None
        # Only one long answer is decoded at a time, over all connections, to limit the CPU time.
        self._reading = Threads(1)
        self._threads = CompressionThreads()
        # Twice as many batches as there are threads may be compressed at once, so that a thread
        # that has finished need not wait until the engine is polled again.
        self._accumulator.drafts.at_once = 2 * self._threads.count
        self.ended = False
        # `Producer.start` sets the event loop's own clock here, because `anyio.current_time` looks
        # up the loop at each call, which would take a tenth of the time spent on a request.
        # Simulated tests set a virtual clock.
        self.clock: Callable[[], float] = anyio.current_time
        self.wakeup = Wakeup()
        self._alarm = Alarm(self.wakeup)

    async def run(self) -> None:
        """Perform the engine's steps until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._alarm.run)
                while True:
                    self._turn()
                    await self.wakeup.wait()
                    if self._late() > _STALL:
                        await self._catch_up()
        except BaseException as error:
            failure = without_cancellation(error)
            if failure is not None:
                text = f"the background task failed: {failure!r}"
                self._engine.fatal(errors.InternalError(text))
            raise
        finally:
            self._tasks = None
            self.ended = True  # before `shut`, because the calls that it wakes look at `ended`
            self._threads.end()
            self._reading.end()
            self.shut()

    def now(self) -> float:
        """Return the time for metrics, in seconds: that of the last event once the loop ended."""
        return self._meters.now if self.ended or self._tasks is None else self.clock()

    def _late(self) -> float:
        """Return how many seconds ago this loop was to run; negative if that is to come.

        While records have no outcome it is to run at least once a second, for `OperatorWatch`.
        """
        expected, wake_at = self._watch.expected_at(), self._core.wake_at
        if expected is None or (wake_at is not None and wake_at < expected):
            expected = wake_at
        return -math.inf if expected is None else self.clock() - expected

    async def _catch_up(self) -> None:
        """Read arrived answers before the next poll: something has blocked the event loop.

        After a blocking call or a suspension of the process the poll would let requests time out
        whose answers may be in the sockets already.
        """
        if not self.settled.pending:
            self._outcomes.event(
                LogLine.LOOP_BLOCKED,
                f"the event loop was blocked, or the process suspended, for at least "
                f"{self._late():.1f} s",
            )
            for _ in range(_CATCH_UP_ROUNDS):
                await anyio.lowlevel.checkpoint()

    def _turn(self) -> None:
        if not self._begin_turn():
            return
        now = self.clock()
        for step in self._engine.poll(now, self._wall_clock() * 1000.0):
            self._perform(step)
        if self._sent_directly:
            self._report_sent()
        self._alarm.set(self._core.wake_at)
        if now >= self._watch.due_at:
            self._watch.look(now)
            if self._flight is not None:
                self._flight.attend()
        self.deliver()
        self._alarm.set(self._watch.wakes_at)
        self._alarm.set(self.unseen.due_at)
        self._note_turn((now, self.clock()))

    def _report_sent(self) -> None:
        """Report to the engine that bytes were sent while its steps were performed."""
        channels, self._sent_directly = self._sent_directly, {}
        for channel in channels:
            self._on_progress(channel)

    def _begin_turn(self) -> bool:
        """Deliver the outcomes that the last turn has left over.

        Returns:
            False if there are still outcomes left; the engine is then not polled in this turn.
        """
        self.settled.begin_turn()
        if not self.settled.pending:
            return True
        self.deliver()
        return not self.settled.pending

    def deliver(self) -> None:
        """Hand out outcomes, write log messages, and wake calls that wait for the engine's state.

        Outcomes beyond the limit for one turn of the loop are left to the next turn.
        """
        if self._observer is not None:
            for entry in self._produce.take_dispatched():
                self._observer.on_dispatched(entry)
        if not self.settled.tell():
            self.wakeup.set()
            return
        if self.unseen.due_at is not None and not self._accumulator.assigning:
            self.unseen.report(self.clock())
        if self._outcomes.has_events:
            self._log()
        if self._watchers:
            self._watchers = [watcher for watcher in self._watchers if not _notify(watcher)]

    def _log(self) -> None:
        """Log the engine's lines for the operator."""
        for line, text, phase, level, fields in self._watch.take(self.clock()):
            client_id = self._config.client_id
            write(line, text, client_id=client_id, level=level, phase=phase, fields=fields)

    def _announce(self, settlement: Settlement) -> None:
        if self._observer is not None:
            self._observer.on_settled(settlement, self.clock())

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on the engine's state holds and all outcomes are delivered.

        This method has no timeout: the caller cancels a wait that takes too long.
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
        """End the producer: give every record an outcome, and close the connections.

        This is a plain function, so that it cannot be cancelled.
        """
        self.settled.all_at_once()
        self._watch.close(self.clock())
        for step in self._engine.close(self.clock()):
            self._perform(step)
        for channel in self._channels.values():
            channel.connection.close_soon("the producer is closing")
        self._deliver_the_rest()

    def end_without_loop(self) -> None:
        """End the producer after its event loop was closed: every record gets an outcome.

        No method of the loop is called; the sockets were closed together with the loop.
        """
        self.ended = True
        self.clock = lambda: 0.0  # the closed loop's clock may raise
        self._watchers.clear()
        self.settled.all_at_once()
        self._engine.close(0.0)
        self._deliver_the_rest()

    def _deliver_the_rest(self) -> None:
        try:
            self.deliver()
        except BaseException:
            # A callback of the user's has to end the program. Every outcome was delivered before
            # that was raised; this wakes the calls that wait for the engine's state.
            self.deliver()
            raise
        finally:
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
            case steps.Compress():
                if self._tasks is not None:
                    self._tasks.start_soon(self._compress, step)
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

    async def _compress(self, step: steps.Compress) -> None:
        """Compress records in a thread, and report the result to the engine."""
        self._on_compressed(step, await self._threads.compress(step))

    def _on_compressed(self, step: steps.Compress, result: BatchBody | errors.KafkaError) -> None:
        self._engine.on_compressed(step.token, result)
        self.deliver()
        self.wakeup.set()

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
            topics=step.topics,
        )
        limit = None
        if step.acks != 0:
            channel.asked[correlation_id] = step, _produce_reader(step.version)
            partitions = 0
            for topic in step.topics:
                partitions += len(topic.partitions)
            limit = produce_answer_limit(partitions, step.records, self._config.max_frame_bytes)
        else:
            channel.unanswered.append((correlation_id, step.token))
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
            self._engine.on_unsupported(step, error, self.clock())
            self.wakeup.set()
            return
        correlation_id = channel.connection.next_correlation_id()
        channel.asked[correlation_id] = step, asked.reader(version)
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
        """Send or queue a request.

        Args:
            channel: The connection.
            frame: The request.
            correlation_id: The id in the frame.
            token: The engine's id of the request.
            limit: The most bytes that the answer may have; None if there will be no answer.
        """
        try:
            sent = channel.connection.write(
                frame,
                correlation_id=correlation_id,
                expects_response=limit is not None,
                limit=limit,
            )
            if sent and channel.unanswered:
                self._sent_directly[channel] = None
        except errors.KafkaConnectionError:
            # The connection has just ended. `on_link_lost` follows, and reports to the engine that
            # this request was never written.
            channel.refuse(correlation_id, token)

    # -- connections -------------------------------------------------------------------------------

    async def _serve(self, step: steps.OpenLink) -> None:
        """Open a connection, run it, and report its opening and its end to the engine."""
        connection: Connection | None = None
        meters, link = self._meters, self._connections.links.get(step.link_id)
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
                    traffic=None if link is None else meters.nodes[link.node_id],
                )
                version = connection.versions.choose(ApiKey.PRODUCE)
                transaction_version = connection.versions.transaction_version
            except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this link alone
                if isinstance(error, errors.AuthenticationFailedError):
                    meters.refused.record(1, self.clock())
                self._lost(step.link_id, _told(error), ())
            finally:
                del self._opening[step.link_id]
        if connection is None:
            return
        channel = _Channel(step.link_id, connection)
        self._channels[step.link_id] = channel
        meters.connected(self.clock(), authenticated=self.sasl is not None)
        self._engine.on_link_open(step.link_id, version, self.clock(), transaction_version)
        self.wakeup.set()
        cause: Exception | None = None
        try:
            cause = await connection.run(
                partial(self._on_frame, channel), partial(self._on_progress, channel)
            )
        finally:
            del self._channels[step.link_id]
            meters.closed.record(1, self.clock())
            self._lost(step.link_id, cause, channel.unwritten())

    def _on_frame(
        self, channel: _Channel, correlation_id: int, frame: bytes
    ) -> Awaitable[None] | None:
        asked = channel.asked.pop(correlation_id, None)
        if asked is None:
            raise errors.ProtocolError(f"an answer to {correlation_id}, which expects none")
        step, read = asked
        # A simulated test has no event loop to start a thread from, and decodes every answer here.
        if len(frame) > LONG_ANSWER and self._tasks is not None:
            return self._on_long_frame(channel, step, read, frame)
        try:
            answer = read(frame)
        except errors.ProtocolError as error:
            self._undecodable(channel, step, error)
            raise
        self._answered(step, answer)
        return None

    async def _on_long_frame(
        self,
        channel: _Channel,
        step: steps.Request,
        read: Callable[[bytes], Any],
        frame: bytes,
    ) -> None:
        try:
            answer = await self._in_thread(read, frame)
        except errors.ProtocolError as error:
            self._undecodable(channel, step, error)
            raise
        merge = self._core.merge_of(step, answer)
        if merge is not None:
            for _ in merge.slices():
                await anyio.lowlevel.checkpoint()
        self._answered(step, answer, merge)

    async def _in_thread(self, read: Callable[[bytes], Any], frame: bytes) -> Any:
        """Decode an answer in a thread, or here if the system permits no more threads."""
        try:
            # If the connection ends, the thread is abandoned: it ends by itself, because a frame's
            # length is limited.
            return await self._reading.run(partial(read, frame))
        except errors.KafkaError:
            raise
        except RuntimeError:
            return read(frame)

    def _answered(
        self, step: steps.Request, answer: Any, merge: MetadataMerge | None = None
    ) -> None:
        """Pass an answer to the engine.

        Raises:
            ProtocolError: The answer does not fit the request, so the connection must be closed.
        """
        odd = self._engine.on_answer(step, answer, self.clock(), merge)
        if odd is not None:
            raise odd
        self.deliver()
        self.wakeup.set()

    def _undecodable(
        self, channel: _Channel, step: steps.Request, error: errors.ProtocolError
    ) -> None:
        if isinstance(step, steps.SendProduce):
            self._engine.on_undecodable(channel.link_id, step.version, error, self.clock())

    def _on_progress(self, channel: _Channel, _written: int = 0, read: int = 0) -> None:
        now = self.clock()
        if read or channel.connection.sends_oldest:
            self._engine.on_progress(channel.link_id, now)
        while channel.unanswered and channel.connection.started(channel.unanswered[0][0]):
            _, token = channel.unanswered.popleft()
            self._produce.on_written_unanswered(channel.link_id, token, now)
            self.wakeup.set()

    def _lost(
        self, link_id: int, error: Exception | None, unwritten: list[int] | tuple[()]
    ) -> None:
        if error is not None:
            text = f"connection {link_id}: {error}"
            write(LogLine.CONNECTION_ENDED, text, client_id=self._config.client_id)
        self._engine.on_link_lost(link_id, error, self.clock(), unwritten)
        self._watch.hurry()
        self.wakeup.set()

    def on_new_credentials(self) -> None:
        """Tell the engine that `sasl` has other credentials now."""
        self._engine.on_new_credentials()

    def _close(self, link_id: int, reason: str) -> None:
        channel = self._channels.get(link_id)
        if channel is not None:
            channel.connection.close_soon(reason)
        scope = self._opening.get(link_id)
        if scope is not None:
            scope.cancel()


@cache
def _produce_reader(version: int) -> Callable[[bytes], ProduceAnswer]:
    """Return the decoder of the answers to Produce requests of this version."""

    def read(frame: bytes) -> ProduceAnswer:
        return decode_produce_response(version, frame)[1]

    return read


def _told(error: Exception) -> errors.KafkaError:
    """Return the error of a connection that could not be opened, as the engine is told it."""
    if isinstance(error, errors.KafkaError):
        return error
    told = errors.KafkaConnectionError(f"cannot connect: {error!r}")
    told.__cause__ = error
    return told


def _notify(watcher: tuple[Callable[[], bool], Signal]) -> bool:
    condition, signal = watcher
    if not condition():
        return False
    signal.set()
    return True
