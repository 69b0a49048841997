"""A signal has a flight record written, on every event loop, beside the program's own handler."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from aioidem import Producer
from aioidem._config import ProducerConfig
from aioidem._flight.record import FlightRecord
from aioidem.broker import EmbeddedCluster
from aioidem.errors import ConfigError
from tests.waiting import until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows has no SIGUSR1"),
]

ASYNCIO = pytest.mark.parametrize("anyio_backend", ["asyncio"])
NAME = "SIGUSR1"


class Records:
    """The flight records that producers gave to their callback."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def take(self, reason: str, content: bytes) -> None:
        """Take a flight record; it can be read."""
        FlightRecord.decode(content)
        self.reasons.append(reason)

    async def settled(self, count: int) -> None:
        """Wait until there are so many, and no thread writes another one."""
        with anyio.fail_after(20):
            await until(lambda: len(self.reasons) >= count and not writing())
        assert self.reasons == [f"signal {NAME}"] * count

    def producer(self, cluster: EmbeddedCluster, **options: Any) -> Producer:
        """Return a producer that writes a flight record at the signal."""
        return Producer(
            cluster.bootstrap_servers,
            flight_record_callback=self.take,
            flight_record_signal=NAME,
            **options,
        )


def writing() -> bool:
    """Return whether a thread writes a flight record."""
    return any(each.name == "aioidem flight record" for each in threading.enumerate())


def send_signal() -> None:
    """Send the signal to this process."""
    os.kill(os.getpid(), signal.Signals[NAME])


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """Have a handler of the program's own; return the numbers of the signals that it got."""
    numbers: list[int] = []

    def handle(number: int, _frame: object) -> None:
        numbers.append(number)

    number = signal.Signals[NAME]
    before = signal.signal(number, handle)
    yield numbers
    assert signal.getsignal(number) is handle  # it is put back when the last producer ends
    signal.signal(number, before)


async def test_each_signal_has_a_record_written(handled: list[int]) -> None:
    """A signal is answered however lately another one was, also while the producer is idle."""
    records = Records()
    async with EmbeddedCluster() as cluster, records.producer(cluster) as producer:
        await producer.send("t", b"v")
        for count in (1, 2):
            send_signal()
            await records.settled(count)
    send_signal()
    assert handled == [signal.Signals[NAME]] * 3
    assert records.reasons == [f"signal {NAME}"] * 2


@ASYNCIO
async def test_producers_of_a_process_share_a_signal(handled: list[int]) -> None:
    """Every open producer writes; the program's handler is called once for each signal."""
    first, second = Records(), Records()
    async with EmbeddedCluster() as cluster, first.producer(cluster):
        async with second.producer(cluster):
            send_signal()
            await first.settled(1)
            await second.settled(1)
        send_signal()
        await first.settled(2)
        await second.settled(1)
    assert len(handled) == 2


@ASYNCIO
async def test_a_handler_that_the_program_sets_later_stays(handled: list[int]) -> None:
    """The end of a producer does not undo what the program did meanwhile."""
    number, records = signal.Signals[NAME], Records()
    before = signal.getsignal(number)
    async with EmbeddedCluster() as cluster, records.producer(cluster):
        signal.signal(number, signal.SIG_IGN)
    assert signal.getsignal(number) is signal.SIG_IGN
    signal.signal(number, before)
    assert not handled


@ASYNCIO
async def test_a_producer_of_another_thread_is_refused(handled: list[int]) -> None:
    """Python handles signals in the main thread only: the error says so, and nothing is left."""
    records = Records()

    async def start(cluster: EmbeddedCluster) -> None:
        async with records.producer(cluster):
            pass

    async with EmbeddedCluster() as cluster:
        with pytest.raises(ConfigError, match="is started in the main thread"):
            await anyio.to_thread.run_sync(anyio.run, start, cluster)
    assert not handled


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "expected flight_record_directory"),
        ({"flight_record_directory": "x", "flight_recorder": 0}, "expected flight_recorder"),
    ],
)
def test_a_signal_without_a_record_is_a_contradiction(
    options: dict[str, Any], expected: str
) -> None:
    """The error names the option that is missing."""
    with pytest.raises(ConfigError, match=expected):
        ProducerConfig.build("h", flight_record_signal=NAME, **options)


def test_a_platform_without_the_signal_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Windows has no such signals, and the error of the option says it."""
    monkeypatch.delattr(signal, NAME)
    with pytest.raises(ConfigError, match="this platform has no such signal"):
        ProducerConfig.build("h", flight_record_signal=NAME, flight_record_directory=str(tmp_path))
