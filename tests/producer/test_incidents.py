"""What the log says about each kind of incident: one line when it begins, one when it ends.

Each outage is acted out on the embedded cluster, in virtual time, so that the seconds in the lines
are exact to the quarter of a second between two looks.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio.testing
from anyio.abc import ByteStream
from kio.schema.errors import ErrorCode

from aioidem import Producer, errors
from aioidem._broker.intercept import Action, Drop, Refuse, RequestSeen
from aioidem._network.transport import Connector
from aioidem.broker import BrokerSecurity, EmbeddedCluster

from .tools import ONE_EACH, PRODUCE, RETAIN, bounded, producer_for, virtual_time

pytestmark = pytest.mark.anyio

TIMES: dict[str, Any] = {"delivery_timeout": 60.0, "request_timeout": 5.0, "max_block": 30.0}
CANARY = "canary-0451"
MOST_WARNINGS = 6


class Log:
    """The lines that were logged, by name."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "aioidem")
        self._caplog = caplog

    def of(self, incident: str) -> list[logging.LogRecord]:
        """Return the lines with this name."""
        return [r for r in self._caplog.records if getattr(r, "incident", "") == incident]

    def phases(self, incident: str) -> list[str]:
        """Return the phases of the lines with this name, in order."""
        return [r.__dict__["phase"] for r in self.of(incident)]

    def outline(self, incident: str) -> tuple[logging.LogRecord, int, logging.LogRecord]:
        """Return the first and the last line of an incident, and how many are between them."""
        begin, *between, end = self.of(incident)
        assert begin.__dict__["phase"] == "begins"
        assert end.__dict__["phase"] == "ends"
        assert {r.__dict__["phase"] for r in between} <= {"continues"}
        assert {r.levelno for r in between} <= {logging.INFO}
        return begin, len(between), end

    @property
    def warnings(self) -> list[str]:
        """The messages at WARNING and above."""
        return [r.getMessage() for r in self._caplog.records if r.levelno >= logging.WARNING]

    def check(self) -> None:
        """Check what holds for the log of every outage."""
        assert len(self.warnings) <= MOST_WARNINGS, "\n".join(self.warnings)
        for record in self._caplog.records:
            told = record.getMessage()
            assert told.endswith(f" [{record.__dict__['incident']}]")
            assert CANARY not in told
            assert CANARY not in repr(record.__dict__)
        messages = [record.getMessage() for record in self._caplog.records]
        assert len(messages) < 40


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


@asynccontextmanager
async def running(
    brokers: int = 1,
    connector: Callable[[EmbeddedCluster], Connector] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[EmbeddedCluster, Producer]]:
    """Run a producer that is connected to the leader of each partition of "orders"."""
    async with EmbeddedCluster(brokers=brokers, rtt=0.02, transport="memory") as cluster:
        cluster.create_topic("orders", partitions=4)
        through = None if connector is None else connector(cluster)
        given = TIMES | {"client_id": "checkout"} | options
        async with producer_for(cluster, connector=through, **given) as producer:
            for partition in range(4):
                await producer.send("orders", CANARY.encode(), partition=partition)
            yield cluster, producer


async def send_for(producer: Producer, seconds: int, partition: int | None = None) -> None:
    """Send a record a second without looking at its outcome."""
    for _ in range(seconds):
        producer.send_nowait("orders", CANARY.encode(), partition=partition)
        await virtual_time(1.0)


# --- no broker ------------------------------------------------------------------------------------


@bounded(1000)
async def test_all_brokers_gone_for_five_minutes(log: Log) -> None:
    """An outage of all brokers is one warning after a second and one when it is over."""
    async with running(brokers=2) as (cluster, producer):
        for broker in (0, 1):
            await cluster.stop_broker(broker)
        await send_for(producer, 300)
        for broker in (0, 1):
            await cluster.start_broker(broker)
        await producer.flush()
        await virtual_time(10.0)
        begin, between, end = log.outline("no-broker")
        assert begin.levelno == end.levelno == logging.WARNING
        told = begin.getMessage()
        assert told.startswith("checkout: no broker can be reached for 1.")
        assert "embedded-0:9092: no broker listens there" in told
        assert "embedded-1:9092: no broker listens there" in told
        assert 3 <= between <= 6
        told = end.getMessage()
        assert told.startswith("checkout: a broker can be reached again, after 30")
        assert "not written" in told
        fields = end.__dict__
        assert fields["client_id"] == "checkout"
        assert 300 <= fields["seconds"] <= 310
        assert fields["not_written"] + fields["unknown"] > 200
        assert all(r.levelno == logging.INFO for r in log.of("leader-unreachable"))
        assert all(r.levelno == logging.INFO for r in log.of("in-doubt"))
    log.check()


class _Failing:
    """A connector that can be told to fail, with the reason that the system would name."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._inner = cluster.connector
        self.reason: str | None = None
        self.hosts: tuple[str, ...] = ()

    async def connect(self, host: str, port: int) -> ByteStream:
        if self.reason is not None and (not self.hosts or host in self.hosts):
            raise errors.KafkaConnectionError(f"cannot connect to {host}:{port}: {self.reason}")
        return await self._inner.connect(host, port)


@pytest.mark.parametrize(
    "reason", ["Connection refused", "No route to host", "Name or service not known"]
)
@bounded(200)
async def test_the_reason_of_the_system_is_in_the_line(log: Log, reason: str) -> None:
    """The line about an outage has the operating system's own reason."""
    made: list[_Failing] = []

    def failing(cluster: EmbeddedCluster) -> Connector:
        made.append(_Failing(cluster))
        return made[0]

    async with running(connector=failing) as (cluster, producer):
        made[0].reason = reason
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        await send_for(producer, 5)
        made[0].reason = None
        await producer.flush()
        await virtual_time(5.0)
        begin, _, end = log.outline("no-broker")
        assert reason in begin.getMessage()
        assert end.__dict__["acked"] >= 5
    log.check()


@bounded(200)
async def test_a_connection_that_is_replaced_within_a_second_is_no_incident(log: Log) -> None:
    """A broker that restarts within a second is not logged."""
    async with running() as (cluster, producer):
        await cluster.stop_broker(0)
        await virtual_time(0.3)
        await cluster.start_broker(0)
        await send_for(producer, 5)
        await producer.flush()
    assert log.warnings == []
    log.check()


# --- leaders --------------------------------------------------------------------------------------


@bounded(500)
async def test_a_leader_is_missing(log: Log) -> None:
    """Partitions without a leader are one incident, which names the first and counts the others."""
    async with running(brokers=3) as (cluster, producer):
        gone = cluster.leader("orders", 1)
        led = [p for p in range(4) if cluster.leader("orders", p) == gone]
        await cluster.stop_broker(gone)
        for _ in range(20):
            for partition in led:
                producer.send_nowait("orders", b"x", partition=partition)
            await virtual_time(1.0)
        await cluster.start_broker(gone)
        counts = await producer.flush()
        assert counts.acked == 20 * len(led)
        await virtual_time(5.0)
        begin, between, end = log.outline("leader-missing")
        assert begin.levelno == logging.WARNING
        told = begin.getMessage()
        assert "orders-1 with waiting records: no leader for 1." in told
        assert f"; last tried broker {gone} (embedded-{gone}:9092): " in told
        assert all(r.levelno == logging.INFO for r in log.of("in-doubt"))
        assert begin.__dict__["count"] == len(led)
        assert between == 1
        assert end.__dict__["acked"] >= 20
        assert not log.of("no-broker")
    log.check()


@bounded(500)
async def test_a_leader_cannot_be_reached(log: Log) -> None:
    """A broker that only this client cannot reach is named with its address and the reason."""
    made: list[_Failing] = []

    def failing(cluster: EmbeddedCluster) -> Connector:
        made.append(_Failing(cluster))
        return made[0]

    async with running(brokers=2, connector=failing) as (cluster, producer):
        far = cluster.leader("orders", 0)
        made[0].hosts, made[0].reason = (f"embedded-{far}",), "Connection timed out"
        await cluster.stop_broker(far)
        await cluster.start_broker(far)
        if cluster.leader("orders", 0) != far:
            cluster.move_leader("orders", 0, far)
        for _ in range(8):
            producer.send_nowait("orders", b"x", partition=0)
            await virtual_time(1.0)
        made[0].reason = None
        counts = await producer.flush()
        assert counts.acked == 8
        await virtual_time(5.0)
        begin, _, end = log.outline("leader-unreachable")
        told = begin.getMessage()
        assert (
            f"broker {far} (embedded-{far}:9092), the last leader of orders-0 with waiting" in told
        )
        assert "Connection timed out" in told
        assert end.levelno == logging.WARNING
    log.check()


# --- batches in doubt -----------------------------------------------------------------------------


@bounded(500)
async def test_batches_in_doubt_without_an_outage(log: Log) -> None:
    """Answers that are lost leave batches in doubt: a warning, and one when they are resolved."""
    lost = 0

    def lose_answers(seen: RequestSeen) -> Action | None:
        return Drop(processed=True) if seen.api_key == PRODUCE and lost else None

    async with running() as (cluster, producer):
        cluster.intercept(lose_answers)
        lost = 1
        producer.send_nowait("orders", b"x", partition=2)
        await virtual_time(8.0)
        lost = 0
        counts = await producer.flush()
        assert counts.acked == 1
        await virtual_time(3.0)
        begin, _, end = log.outline("in-doubt")
        assert begin.levelno == end.levelno == logging.WARNING
        assert "1 batch of orders-2 in doubt for 2." in begin.getMessage()
        assert "no batch is in doubt any more, after " in end.getMessage()
        assert end.__dict__["acked"] == 1
    assert len(cluster.batches("orders", 2)) == 2
    log.check()


# --- throttling, room -----------------------------------------------------------------------------


@bounded(500)
async def test_a_throttled_client(log: Log) -> None:
    """A quota is one warning that names the broker and the delay, and one when it is over."""
    async with running() as (cluster, producer):
        cluster.set_throttle(0, 3.0)
        await send_for(producer, 30, partition=0)
        cluster.set_throttle(0, 0.0)
        await send_for(producer, 20, partition=0)
        begin, between, end = log.outline("throttled")
        assert begin.levelno == end.levelno == logging.WARNING
        told = begin.getMessage()
        assert "broker 0 (embedded-0:9092) throttles this client (a quota)" in told
        assert "up to 3.0 s" in told
        assert between == 1
    log.check()


def too_few_replicas(seen: RequestSeen) -> Action | None:
    return Refuse(ErrorCode.not_enough_replicas) if seen.api_key == PRODUCE else None


@bounded(500)
async def test_a_buffer_that_is_full(log: Log) -> None:
    """A caller that waits for room is a warning that says which partition is the reason."""
    async with running(buffer_memory=1200) as (cluster, producer):
        cluster.intercept(too_few_replicas)
        first = producer.send_nowait("orders", bytes(300), partition=1)
        with pytest.raises(errors.KafkaTimeoutError):
            await producer.send("orders", bytes(300), partition=1)
        cluster.intercept(None)
        await first
        await virtual_time(15.0)
        begin, _, end = log.outline("buffer-full")
        told = begin.getMessage()
        assert "1 caller of send waits for room, the first for 2." in told
        assert "orders-1: 1 record without an outcome" in told
        assert "the buffer has room again" in end.getMessage()
    log.check()


@bounded(500)
async def test_a_buffer_that_only_send_nowait_finds_full(log: Log) -> None:
    """Calls that do not wait are the same incident, if none finds room for a second."""
    async with running(buffer_memory=1200) as (cluster, producer):
        cluster.intercept(too_few_replicas)
        first = producer.send_nowait("orders", bytes(300), partition=1)
        for _ in range(30):
            with pytest.raises(errors.BufferFullError, match="orders-2: no room for "):
                producer.send_nowait("orders", bytes(300), partition=2)
            await virtual_time(0.1)
        cluster.intercept(None)
        await first
        await virtual_time(15.0)
        begin, _, end = log.outline("buffer-full")
        told = begin.getMessage()
        assert "send_nowait has found no room " in told
        assert " times in 2." in told
        assert "orders-1: 1 record without an outcome" in told
        assert begin.levelno == end.levelno == logging.WARNING
    log.check()


@bounded(500)
async def test_a_buffer_that_is_full_between_records_that_find_room_is_no_incident(
    log: Log,
) -> None:
    """A program that sends as fast as it may meets a full buffer all the time."""
    async with running(buffer_memory=1200) as (_, producer):
        for _ in range(40):
            producer.send_nowait("orders", bytes(300), partition=1)
            with pytest.raises(errors.BufferFullError):
                producer.send_nowait("orders", bytes(300), partition=1)
            await virtual_time(0.1)
        await virtual_time(5.0)
        assert not log.of("buffer-full")


# --- authentication -------------------------------------------------------------------------------


@bounded(500)
async def test_credentials_that_are_refused(log: Log) -> None:
    """Refused credentials are one warning with the broker's reason; no line has the password."""
    users = {"alice": CANARY}
    security = BrokerSecurity(mechanisms=("PLAIN",), users=users)
    async with EmbeddedCluster(security=security, transport="memory") as cluster:
        cluster.create_topic("orders")
        options = TIMES | {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_allow_plaintext": True,
            "sasl_credentials": lambda: ("alice", CANARY),
        }
        async with producer_for(cluster, **options) as producer:
            await producer.send("orders", b"x")
            users["alice"] = "another"
            await cluster.stop_broker(0)
            await cluster.start_broker(0)
            await send_for(producer, 30)
            users["alice"] = CANARY
            assert (await producer.flush()).acked == 30
            await virtual_time(5.0)
            begin, between, end = log.outline("authentication")
            assert "refuses this client: [Error 58] SaslAuthenticationFailed" in begin.getMessage()
            assert "no broker refuses this client any more" in end.getMessage()
            assert between <= 2
            assert all(r.levelno == logging.INFO for r in log.of("no-broker"))
    log.check()


# --- events ---------------------------------------------------------------------------------------


@bounded(500)
async def test_epoch_bumps_that_follow_one_another_are_counted(log: Log) -> None:
    """The first epoch bump is a warning with its reason; the others are counted at INFO."""

    def refuse(seen: RequestSeen) -> Action | None:
        return Refuse(ErrorCode.invalid_timestamp) if seen.api_key == PRODUCE else None

    async with running() as (cluster, producer):
        cluster.intercept(refuse)
        await send_for(producer, 25, partition=0)
        cluster.intercept(None)
        first, *others = log.of("epoch-bumped")
        assert first.levelno == logging.WARNING
        assert "because a batch ended NOT_WRITTEN (InvalidTimestampError)" in first.getMessage()
        assert {r.levelno for r in others} == {logging.INFO}
        assert others[0].getMessage().startswith("checkout: 10 more in 11 s; the last: orders-0")
        assert len(others) == 1
        await virtual_time(60.0)
        begin, _, end = log.outline("unseen-failures")
        assert begin.__dict__["error"] == "InvalidTimestampError"
        assert end.__dict__["count"] == 25
    log.check()


@bounded(500)
async def test_a_window_that_changes(log: Log) -> None:
    """A window that grows is logged at INFO, one that shrinks is a warning."""
    async with EmbeddedCluster(rtt=0.02, transport="memory", retain=20) as cluster:
        cluster.create_topic("orders", configs={RETAIN: "20"})
        async with producer_for(cluster, **ONE_EACH) as producer:
            await producer.send("orders", b"x")
            await virtual_time(30.0)
            cluster.set_config("orders", RETAIN, 8)
            await producer.send("orders", b"x")
            grown, shrunk = log.of("window-changed")
            assert grown.levelno == logging.INFO
            assert "orders-0: the window is 20 batches, as broker 0 says; it was 5" in (
                grown.getMessage()
            )
            assert shrunk.levelno == logging.WARNING
            assert "the window is 8 batches, as broker 0 says; it was 20" in shrunk.getMessage()
    log.check()


@bounded(500)
@pytest.mark.parametrize("topic", ["orders", "another"])
@pytest.mark.parametrize("when", ["idle", "queued", "in flight"])
async def test_a_blocking_call(log: Log, topic: str, when: str) -> None:
    """A block of more than two seconds is logged if a record waits, whatever is due by itself."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    async with running() as (cluster, producer):
        cluster.create_topic("another")
        await virtual_time(5.0)
        if when != "idle":
            delivery = producer.send_nowait(topic, b"x", partition=0)
            if when == "in flight":
                await trio.testing.wait_all_tasks_blocked()
            clock.jump(3.0)
            await delivery
            [line] = log.of("loop-blocked")
            assert "or the process suspended, for at least " in line.getMessage()
            at_least = float(line.getMessage().split("at least ")[1].split(" s")[0])
            assert 2.0 <= at_least <= 3.0
            await virtual_time(60.0)
        clock.jump(3.0)
        await virtual_time(30.0)
        # While no record waits, the producer need not run, and so notices no block.
        await producer.send(topic, b"x", partition=0)
        assert len(log.of("loop-blocked")) == (when != "idle")
    log.check()


@bounded(500)
async def test_an_event_loop_that_is_blocked(log: Log) -> None:
    """A loop that is blocked past a time at which the producer was to run is logged."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    async with running() as (_, producer):
        delivery = producer.send_nowait("orders", b"x", partition=0)
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(20.0)
        await delivery
        [line] = log.of("loop-blocked")
        assert "the event loop was blocked, or the process suspended" in line.getMessage()
    log.check()


@bounded(500)
async def test_an_idle_producer_looks_no_more(log: Log) -> None:
    """A producer that has nothing to send wakes no more than it did without its watch."""
    async with running(metadata_max_age=1e6, connections_max_idle=None) as (_, producer):
        await virtual_time(5.0)
        assert producer._core.watch.wakes_at is None  # noqa: SLF001 - nothing else shows it
    assert log.warnings == []
