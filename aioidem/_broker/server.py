"""EmbeddedCluster: the sans-IO `ClusterState` behind real connections, over TCP or in memory.

For tests and demos, not for production: logs are in RAM and bounded (256 MiB per partition unless
``retention.bytes`` says otherwise; the oldest batches go first), who is let in may do everything,
and nothing survives the process. Everything a client could notice is decided in `ClusterState`;
here are only listeners, two tasks per connection, and one task that waits for the next due time.

Invariants
    A batch counts as read as soon as its frame came off the stream, before any simulated delay.
    Methods are plain functions for the event loop's thread, and take effect before they return.
    Leaving the ``async with`` ends every connection and listener.

Rejected
    A task per request or per delayed answer: order would then depend on the scheduler.
"""

from __future__ import annotations

import functools
import inspect
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import anyio
from anyio.abc import ByteStream, SocketAttribute, TaskGroup, TaskStatus
from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.configs import BROKER_CONFIGS, TOPIC_CONFIGS, validate
from aioidem._broker.decoding import read_request
from aioidem._broker.entities import Entity
from aioidem._broker.intercept import Interceptor
from aioidem._broker.memory import MemoryConnector, MemoryStream, stream_pair
from aioidem._broker.partition import Partition, Topic
from aioidem._broker.requests import Connection, Delivery
from aioidem._broker.security import BrokerSecurity
from aioidem._broker.state import ClusterState
from aioidem._broker.stored import StoredRecord, stored_records
from aioidem._broker.topology import FIRST_RETAINING_VERSION, Broker
from aioidem._network.listening import Listening
from aioidem._network.transport import Connector, TcpConnector
from aioidem._protocol.frames import FrameSplitter
from aioidem._protocol.messages import encode_response
from aioidem._records import RecordBatch, read_batches
from aioidem.errors import ConfigError, NotKafkaError, ProtocolError, error_for_code

if TYPE_CHECKING:
    from aioidem._broker.partition import Replica
    from aioidem._broker.threaded import ThreadedCluster

__all__ = ["EmbeddedCluster"]

_API_VERSIONS: Final = 18
_READ_BYTES: Final = 1 << 18
_MAX_REQUEST_BYTES: Final = 100 * 1024 * 1024
_MEMORY_PORT: Final = 9092


class EmbeddedCluster:
    """A Kafka cluster in this process that real clients can use.

    ``async with EmbeddedCluster() as cluster:`` starts the brokers; `bootstrap_servers` is where
    they listen. Broker ids are 0, 1, ...; partition p of a new topic is led by the (p mod
    brokers)-th of them.

    :param brokers: how many.
    :param retain: batches remembered per producer and partition (KIP-1269), at least 5; of all
        brokers, or by broker id.
    :param rtt: round-trip time of every connection, seconds.
    :param bandwidth: of every connection and direction, bytes per second; None: unlimited.
    :param produce_versions: highest Produce version, of all brokers or by broker id. 13 and less
        is a broker of before KIP-1269: it keeps 5 whatever is configured.
    :param sequence_range: brokers of KIP-758: they keep one batch, answer
        DUPLICATE_SEQUENCE_NUMBER to what begins less than this behind the last sequence, and speak
        Produce v13 at most. None: brokers of today, or of KIP-1269.
    :param transaction_version: level of the feature of that name, which tells clients how to speak
        of transactions: 2 as KIP-890 and Kafka 4, 0 as before. At 2, both are served.
    :param transport: "tcp" on 127.0.0.1, or "memory" (then use `connector`).
    :param ports: TCP ports by broker, 0 for a free one.
    :param configs: cluster-wide broker configs by their Kafka names.
    :param seed: of cluster id and topic ids. Clusters of different seeds are different clusters
        that hand out the same producer ids, as real ones do.
    :param security: TLS and SASL of every broker; None: whoever connects is let in.
    :param wall_clock: seconds since the epoch, for timestamps and expiry.
    :raises ConfigError: a value no broker would start with.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        retain: int | Mapping[int, int] = 5,
        rtt: float = 0.0,
        bandwidth: float | None = None,
        produce_versions: int | Mapping[int, int] = FIRST_RETAINING_VERSION,
        sequence_range: int | None = None,
        transaction_version: Literal[0, 1, 2] = 2,
        transport: Literal["tcp", "memory"] = "tcp",
        ports: Sequence[int] = (),
        auto_create_topics: bool = True,
        default_partitions: int = 1,
        default_replication: int = 1,
        configs: Mapping[str, str] | None = None,
        seed: int = 0,
        security: BrokerSecurity | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        settings = {
            "auto.create.topics.enable": "true" if auto_create_topics else "false",
            "num.partitions": str(default_partitions),
            "default.replication.factor": str(default_replication),
            **(configs or {}),
        }
        if brokers < 1 or rtt < 0 or (bandwidth is not None and bandwidth <= 0):
            raise ConfigError(
                f"brokers={brokers}, rtt={rtt}, bandwidth={bandwidth}: there must be a broker, "
                "and neither delay nor bandwidth can be negative"
            )
        try:
            self._state = ClusterState(
                brokers=brokers,
                retain=retain,
                produce_versions=produce_versions,
                configs={
                    name: value
                    for name, value in settings.items()
                    if name not in BROKER_CONFIGS or value != BROKER_CONFIGS[name].default
                },
                rtt=rtt,
                bandwidth=bandwidth,
                seed=seed,
                encode=True,
                sequence_range=sequence_range,
                security=security,
                transaction_version=transaction_version,
            )
        except RefusedError as refusal:
            raise ConfigError(refusal.message) from None
        self._security = security or BrokerSecurity()
        self._transport = transport
        self._ports = list(ports) + [0] * (brokers - len(ports))
        self._wall_clock = wall_clock
        self._exits = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._listening: dict[int, Listening] = {}
        self._channels: dict[int, _Channel] = {}
        self._stopped_clean: dict[int, bool] = {}
        self._asleep_until: float | None = None
        self._awake = anyio.Event()

    @classmethod
    def in_thread(cls, **options: Any) -> ThreadedCluster:
        """Return a cluster that runs in a thread of its own, for clients that block theirs.

        ``with EmbeddedCluster.in_thread() as cluster:`` starts the brokers. It has the same
        methods, as plain functions that any thread may call; ``options`` are this class's.

        :raises TypeError: an option that there is not; a wrong value is told when it starts.
        """
        from aioidem._broker.threaded import ThreadedCluster

        inspect.signature(cls).bind(**options)
        return ThreadedCluster(functools.partial(cls, **options))

    def __repr__(self) -> str:
        state = "running" if self._tasks is not None else "not running"
        return (
            f"<EmbeddedCluster {state} brokers={len(self._state.brokers)} "
            f"topics={len(self._state.topics)}>"
        )

    async def __aenter__(self) -> Self:
        """Start every broker."""
        self._tasks = await self._exits.enter_async_context(anyio.create_task_group())
        try:
            for broker in self._state.brokers.values():
                await self._listen(broker)
        except BaseException:
            await self._shut()
            raise
        self._tasks.start_soon(self._run_clock)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop everything at once; clients see their connections end."""
        await self._shut()

    # -- for clients ------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """The cluster without its sockets, to look into."""
        return self._state

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,...`` of the brokers that run."""
        return ",".join(f"{b.host}:{b.port}" for b in self._state.running)

    @property
    def connector(self) -> Connector:
        """How to reach the brokers: in memory, or plain TCP."""
        if self._transport == "memory":
            return MemoryConnector(self._accept_in_memory)
        return TcpConnector()

    # -- topics -----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, whatever its brokers know of its configs.

        Raises the error CreateTopics answers, e.g. `TopicAlreadyExistsError`.
        """
        try:
            self._state.create_topic(
                name, partitions=partitions, replication=replication, configs=dict(configs or {})
            )
        except RefusedError as refusal:
            raise _public(refusal) from None

    def add_partitions(self, name: str, count: int) -> None:
        """Let a topic have `count` partitions from now on, as CreatePartitions would.

        Raises the error that it answers, e.g. `InvalidPartitionsError` for too few.
        """
        self._pump()
        try:
            self._state.add_partitions(self._topic(name), count)
        except RefusedError as refusal:
            raise _public(refusal) from None
        self._pump()

    def delete_topic(self, name: str) -> None:
        """Delete it. Raises `UnknownTopicOrPartitionError`."""
        self._pump()
        self._state.delete_topic(self._topic(name))
        self._pump()

    def set_config(self, topic: str, name: str, value: str | int | None) -> None:
        """Set one config of a topic (None: back to the default), on any version of brokers.

        Raises `InvalidConfigurationError` or `UnknownTopicOrPartitionError`.
        """
        target = self._topic(topic)
        overrides = dict(target.overrides)
        if value is None:
            overrides.pop(name, None)
        else:
            self._check(TOPIC_CONFIGS, name, str(value))
            overrides[name] = str(value)
        self._state.set_topic_configs(target, overrides)

    def set_broker_config(
        self, name: str, value: str | int | None, broker_id: int | None = None
    ) -> None:
        """Set one broker config (None: back to the default), of one broker or of the cluster.

        Raises `InvalidConfigurationError`.
        """
        self._pump()
        broker = None if broker_id is None else self._state.brokers[broker_id]
        configs = dict(self._state.configs if broker is None else broker.configs)
        if value is None:
            configs.pop(name, None)
        else:
            self._check(BROKER_CONFIGS, name, str(value))
            configs[name] = str(value)
        self._state.set_broker_configs(broker, configs)

    def batches(self, topic: str, partition: int = 0) -> list[RecordBatch]:
        """What the leader's log holds, committed or not, with every checksum verified."""
        return read_batches(b"".join(b.wire() for b in self._log(topic, partition).log.batches))

    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    ) -> list[StoredRecord]:
        """Return what a consumer would read: of all partitions, in their order, or of one.

        :param isolation: "read_committed" leaves out what transactions aborted or have not
            committed yet, and what is behind an open one; "read_uncommitted" does not.
        :raises UnknownTopicOrPartitionError: there is no such topic or partition.
        """
        partitions = (
            self._topic(topic).partitions
            if partition is None
            else [self._partition(topic, partition)]
        )
        committed = isolation == "read_committed"
        return [
            record
            for each in partitions
            for record in stored_records(each, self._log(topic, each.index), committed=committed)
        ]

    def log_end_offset(self, topic: str, partition: int = 0) -> int:
        """Offset of the next record on the leader."""
        return self._log(topic, partition).log.end_offset

    def high_watermark(self, topic: str, partition: int = 0) -> int:
        """Offset up to which records are committed."""
        return self._partition(topic, partition).high_watermark

    def last_stable_offset(self, topic: str, partition: int = 0) -> int:
        """Offset up to which every transaction is decided."""
        return self._partition(topic, partition).last_stable_offset

    # -- what a producer's window did -------------------------------------------------------------

    def span(self, topic: str, partition: int = 0) -> int:
        """Batches from the oldest unresolved to the newest read one, now (see `broker.spans`)."""
        return self._partition(topic, partition).spans.span()

    def max_span(self, topic: str, partition: int = 0) -> int:
        """The largest `span` any producer id and epoch ever had there."""
        return self._partition(topic, partition).spans.max_span()

    def max_unproven_span(self, topic: str, partition: int = 0) -> int:
        """As `max_span`, but a later batch's success resolves the ones below it too."""
        return self._partition(topic, partition).spans.max_unproven_span()

    # -- faults -----------------------------------------------------------------------------------

    def intercept(self, hook: Interceptor | None) -> None:
        """Call ``hook`` for every request about to be served; None: end (see `intercept`)."""
        self._state.interceptor = hook

    def set_rtt(self, seconds: float) -> None:
        """Round-trip time of every connection, for what is sent from now on."""
        self._state.rtt = seconds
        for connection in self._state.connections:
            connection.link.set_rtt(seconds)

    def set_bandwidth(self, bytes_per_second: float | None) -> None:
        """Bandwidth of every connection and direction, for what is sent from now on."""
        self._state.bandwidth = bytes_per_second
        for connection in self._state.connections:
            connection.link.set_bandwidth(bytes_per_second)

    def set_throttle(self, broker_id: int, seconds: float) -> None:
        """Produce answers of that broker carry this throttle time, and it makes clients keep it.

        The connection is not served for so long after each of them (KIP-219).
        """
        self._state.brokers[broker_id].throttle = seconds

    def set_produce_version(self, broker_id: int, version: int) -> None:
        """Make that broker an older or newer one, as a rolling upgrade or downgrade would.

        A client that has not noticed and sends what is not served any more loses its connection.
        """
        self._state.brokers[broker_id].produce_version = version

    def set_clock_offset(self, broker_id: int, seconds: float) -> None:
        """Put that broker's wall clock ahead (or, negative, behind)."""
        self._pump()
        self._state.brokers[broker_id].clock_offset_ms = round(seconds * 1000)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Id of the leader, -1 if there is none."""
        return self._partition(topic, partition).leader

    def leader_epoch(self, topic: str, partition: int = 0) -> int:
        """Counts the changes of leader."""
        return self._partition(topic, partition).leader_epoch

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Make that broker the leader, moving the replica there if it has none.

        What is parked at the old leader is answered NOT_LEADER_OR_FOLLOWER with its base offset.
        Raises a `BrokerResponseError` if that broker does not run.
        """
        target = self._partition(topic, partition)
        try:
            self._change(lambda: self._state.move_leader(target, broker_id))
        except RefusedError as refusal:
            raise _public(refusal) from None

    def hold_high_watermark(self, topic: str, partition: int = 0, at: int | None = None) -> None:
        """Keep the high watermark from rising (above ``at``), so that acks=all times out."""
        self._on_partition(topic, partition, lambda p: p.hold_high_watermark(at))

    def release_high_watermark(self, topic: str, partition: int = 0) -> None:
        """End the hold; what waits for it is answered."""
        self._on_partition(topic, partition, Partition.release_high_watermark)

    def pause_follower(self, topic: str, partition: int, broker_id: int) -> None:
        """That follower copies no more: elected now, it would not have the tail."""
        self._on_partition(topic, partition, lambda p: p.pause(broker_id))

    def resume_follower(self, topic: str, partition: int, broker_id: int) -> None:
        """It catches up."""
        self._on_partition(topic, partition, lambda p: p.resume(broker_id))

    def shrink_isr(self, topic: str, partition: int, broker_id: int) -> None:
        """Take that follower out of the in-sync replicas until it starts or resumes."""
        self._on_partition(topic, partition, lambda p: p.shrink_isr(broker_id))

    def coordinator(self, key: str) -> int:
        """Id of the broker that coordinates a transactional id or a group, -1 if none runs."""
        broker = self._state.coordinator_of(key)
        return -1 if broker is None else broker.id

    def move_coordinator(self, key: str, broker_id: int) -> None:
        """Let that broker coordinate it; the old one answers NOT_COORDINATOR from now on."""
        self._change(lambda: self._state.move_coordinator(key, broker_id))

    def fail_coordinator(self, key: str, code: int | None) -> None:
        """Answer what is asked of that coordinator by an error code; None: end.

        14 COORDINATOR_LOAD_IN_PROGRESS, 15 COORDINATOR_NOT_AVAILABLE (not found either), 16
        NOT_COORDINATOR. A partition's leader that has to ask it answers NOT_ENOUGH_REPLICAS.
        """
        self._pump()
        if code is None:
            self._state.coordinator_faults.pop(key, None)
        else:
            self._state.coordinator_faults[key] = ErrorCode(code)

    def hold_markers(self) -> None:
        """Transactions are decided and do not end: their ids answer CONCURRENT_TRANSACTIONS."""
        self._change(self._state.transactions.hold_markers)

    def release_markers(self) -> None:
        """They end."""
        self._change(self._state.transactions.release_markers)

    def set_marker_delay(self, seconds: float) -> None:
        """So long it takes from a decision to the markers in the logs."""
        self._pump()
        self._state.transactions.marker_delay = seconds

    def set_group(self, group: str, generation: int, members: Mapping[str, str | None]) -> None:
        """Let a group have members (id -> instance id or None): others may not commit for it."""
        self._pump()
        self._state.groups.set_members(group, generation, members)

    async def stop_broker(self, broker_id: int, *, clean: bool = True) -> None:
        """Stop it: connections end, leadership moves to an in-sync replica or is vacant.

        ``clean`` as SIGTERM, otherwise as SIGKILL. Either way it restarts with one remembered
        batch per producer: a snapshot holds no more, and recovery takes one as well.
        """
        if not self._state.brokers[broker_id].online:
            return
        listening = self._listening.pop(broker_id, None)
        if listening is not None:
            await listening.end()
        self._stopped_clean[broker_id] = clean
        self._change(lambda: self._state.stop_broker(broker_id, clean=clean))

    async def start_broker(self, broker_id: int) -> None:
        """Start it again at the same address."""
        broker = self._state.brokers[broker_id]
        if broker.online:
            return
        clean = self._stopped_clean.pop(broker_id, True)
        self._change(lambda: self._state.start_broker(broker_id, clean=clean))
        await self._listen(broker)

    # -- inside -----------------------------------------------------------------------------------

    def _topic(self, name: str) -> Topic:
        topic = self._state.topics.get(name)
        if topic is None:
            raise error_for_code(3)(f"no topic {name!r}")
        return topic

    def _partition(self, topic: str, index: int) -> Partition:
        partition = self._topic(topic).partition(index)
        if partition is None:
            raise error_for_code(3)(f"no partition {index} of topic {topic!r}")
        return partition

    def _log(self, topic: str, index: int) -> Replica:
        partition = self._partition(topic, index)
        leader = partition.leader_replica
        return leader if leader is not None else partition.replicas[partition.isr[0]]

    def _check(self, table: Mapping[str, object], name: str, value: str) -> None:
        definitions = TOPIC_CONFIGS if table is TOPIC_CONFIGS else BROKER_CONFIGS
        try:
            validate(definitions, [(name, value)], retains=True)
        except RefusedError as refusal:
            raise _public(refusal) from None

    def _on_partition(self, topic: str, index: int, change: Callable[[Partition], None]) -> None:
        partition = self._partition(topic, index)

        def act() -> None:
            change(partition)
            self._state.wake(partition)

        self._change(act)

    def _change(self, act: Callable[[], None]) -> None:
        """Settle what is due before ``act``, then what it caused."""
        self._pump()
        act()
        self._pump()

    def _wall_ms(self) -> int:
        return int(self._wall_clock() * 1000)

    def _pump(self) -> None:
        """Let the state catch up with the clock and hand out what is due."""
        if self._tasks is None:
            return
        for delivery in self._state.advance(anyio.current_time(), self._wall_ms()):
            channel = self._channels.get(delivery.connection.id)
            if channel is None:
                self._state.undelivered(delivery)
            else:
                channel.put(delivery)
        due = self._state.next_due()
        if due is not None and (self._asleep_until is None or due < self._asleep_until):
            self._awake.set()

    async def _run_clock(self) -> None:
        while True:
            self._pump()
            self._awake = anyio.Event()
            self._asleep_until = self._state.next_due()
            with anyio.CancelScope() as scope:
                if self._asleep_until is not None:
                    scope.deadline = self._asleep_until
                await self._awake.wait()

    async def _listen(self, broker: Broker) -> None:
        if self._transport == "memory":
            broker.host, broker.port = f"embedded-{broker.id}", _MEMORY_PORT
            return
        broker.host = "127.0.0.1"
        listener = await anyio.create_tcp_listener(
            local_host=broker.host, local_port=self._ports[broker.id]
        )
        port: int = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
        broker.port = self._ports[broker.id] = port
        listening = Listening(listener, anyio.CancelScope(), anyio.Event())
        try:
            if self._tasks is not None:
                # Started, not only scheduled: `_shut` waits for it to close the listener.
                await self._tasks.start(self._accept, broker, listening)
                self._listening[broker.id] = listening
        except BaseException:
            await anyio.aclose_forcefully(listener)
            raise

    async def _accept(
        self, broker: Broker, listening: Listening, *, task_status: TaskStatus[None]
    ) -> None:
        async def serve(stream: ByteStream) -> None:
            raw = stream.extra(SocketAttribute.raw_socket)  # noqa: S610 - not Django's
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._serve(broker, stream)

        # Connections live in the cluster's task group: a broker that stops still delivers the
        # answers that are on their way.
        try:
            async with listening.listener:
                task_status.started()
                with listening.scope:
                    await listening.listener.serve(serve, self._tasks)
        finally:
            listening.done.set()

    def _accept_in_memory(self, host: str, port: int) -> MemoryStream | None:
        for broker in self._state.running:
            if (host, port) == (broker.host, broker.port) and self._tasks is not None:
                ours, theirs = stream_pair()
                self._start(self._serve, broker, ours)
                return theirs
        return None

    def _start(self, run: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        if self._tasks is not None:
            self._tasks.start_soon(run, *arguments)

    async def _serve(self, broker: Broker, raw: ByteStream) -> None:
        stream = await self._security.shield(raw)
        if stream is None:
            return
        connection = self._state.connect(broker.id)
        channel = self._channels[connection.id] = _Channel(stream)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.write, self._state)
                await self._read(broker, connection, channel)
                tasks.cancel_scope.cancel()
        finally:
            del self._channels[connection.id]
            self._state.disconnect(connection)
            await anyio.aclose_forcefully(stream)

    async def _read(self, broker: Broker, connection: Connection, channel: _Channel) -> None:
        splitter = FrameSplitter(_MAX_REQUEST_BYTES)
        while True:
            try:
                frames = splitter.feed(await channel.stream.receive(_READ_BYTES))
                now, wall_ms = anyio.current_time(), self._wall_ms()
                for payload in frames:
                    self._submit(broker, connection, payload, now, wall_ms)
            except (ProtocolError, NotKafkaError, *_STREAM_ENDED):
                return
            self._pump()

    def _submit(
        self, broker: Broker, connection: Connection, payload: bytes, now: float, wall_ms: int
    ) -> None:
        header, request = read_request(payload)
        if header.api_key != _API_VERSIONS and not self._state.serves(
            broker, header.api_key, header.api_version
        ):
            raise ProtocolError(f"API {header.api_key} v{header.api_version} is not served")
        self._state.submit(
            connection,
            request,
            api_key=header.api_key,
            api_version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            now=now,
            wall_ms=wall_ms,
            size=len(payload) + 4,
        )

    async def _shut(self) -> None:
        tasks, self._tasks = self._tasks, None
        with anyio.CancelScope(shield=True):
            for listening in self._listening.values():
                await listening.end()
            self._listening.clear()
        if tasks is not None:
            tasks.cancel_scope.cancel()
        await self._exits.aclose()


class _Channel:
    """What is to be written to one client."""

    __slots__ = ("_pending", "_wake", "stream")

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._pending: list[Delivery] = []
        self._wake = anyio.Event()

    def put(self, delivery: Delivery) -> None:
        """Write it soon."""
        self._pending.append(delivery)
        self._wake.set()

    async def write(self, state: ClusterState) -> None:
        """Write until told to close or the client is gone; then the stream is closed."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            batch, self._pending = self._pending, []
            closing = batch[-1].close if batch else False
            data = b"".join([_bytes_of(delivery) for delivery in batch])
            try:
                if data:
                    await self.stream.send(data)
            except _STREAM_ENDED:
                for delivery in batch:
                    state.undelivered(delivery)
                closing = True
            if closing:
                await self.stream.aclose()
                return


_STREAM_ENDED: Final = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
)


def _bytes_of(delivery: Delivery) -> bytes:
    if delivery.close:
        return b""
    if delivery.frame is not None:
        return delivery.frame
    response: Entity = delivery.response
    return encode_response(response, delivery.correlation_id)


def _public(refusal: RefusedError) -> Exception:
    return error_for_code(refusal.code)(refusal.message)
