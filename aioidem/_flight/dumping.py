"""Dumping: writes a flight record when something went wrong, or when a signal asks for it.

What is written because something went wrong is not written too often. A signal comes from somebody
who wants a file now; only while one is being written nothing more is.

The event loop only collects the events, which takes some microseconds; a thread writes them. So the
producer goes on meanwhile, and the file of a producer that is closing is complete before the
process ends.

Invariant: nothing that goes wrong here reaches the producer; it is logged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aioidem._config import ProducerConfig
from aioidem._flight import on_signal
from aioidem._flight.recorder import FlightRecorder
from aioidem._log import LogLine, write

if TYPE_CHECKING:
    from aioidem._flight.dump import Dump

__all__ = ["Dumping"]

BETWEEN: Final = 60.0
"""The least number of seconds between two flight records that are written by themselves."""
MOST: Final = 10
"""The most flight records that one producer writes by itself."""


class Dumping:
    """Writes flight records of one producer to a directory, or gives them to a callback.

    Args:
        recorder: what to write.
        config: says where to.
    """

    def __init__(self, recorder: FlightRecorder, config: ProducerConfig) -> None:
        self._recorder = recorder
        self._config = config
        self._last = -BETWEEN
        # Has a function called on the producer's event loop; nothing before the producer's start.
        self._soon: Callable[[Callable[[], object]], object] = lambda _: None
        # How many were written by themselves, and how many in all.
        self._count = self._number = 0
        self._threads: list[threading.Thread] = []
        if config.flight_record_directory is not None or config.flight_record_callback is not None:
            recorder.alarm = self.offer

    def offer(self, reason: str) -> None:
        """Write a flight record, unless there were enough lately; the engine must be at rest."""
        now = time.monotonic()
        if now - self._last < BETWEEN or self._count >= MOST:
            return
        self._last = now
        self._count += 1
        self._begin(reason)

    def listen(self, soon: Callable[[Callable[[], object]], object]) -> None:
        """Write a flight record at each signal of `flight_record_signal`, if there is one.

        Args:
            soon: has a function called on the producer's event loop soon, from any thread.

        Raises:
            ConfigError: The call does not come from the main thread.
        """
        self._soon = soon
        if self._config.flight_record_signal is not None:
            on_signal.listen(self._config.flight_record_signal, self)

    def stop_listening(self) -> None:
        """Handle the signal no more."""
        if self._config.flight_record_signal is not None:
            on_signal.stop_listening(self._config.flight_record_signal, self)

    def _begin(self, reason: str) -> None:
        from aioidem._flight.dump import Dump  # here, because few producers ever need it

        self._number += 1
        try:
            dump = Dump(self._recorder, reason, time.time())
            thread = threading.Thread(
                target=self._write, args=(dump, self._number), name="aioidem flight record"
            )
            thread.start()
        except Exception as error:  # noqa: BLE001 - perhaps the system permits no thread
            self._failed(reason, error)
            return
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]

    def on_signal(self) -> None:
        """Have a flight record written soon."""
        self._soon(self._answer_signal)

    def _answer_signal(self) -> None:
        """Write a flight record, unless one is being written; the engine must be at rest."""
        if not any(each.is_alive() for each in self._threads):
            self._begin(f"signal {self._config.flight_record_signal}")

    def wait(self) -> None:
        """Wait until the threads have ended; this blocks."""
        for thread in self._threads:
            thread.join()

    def _write(self, dump: Dump, number: int) -> None:
        from pathlib import Path

        from aioidem._flight.dump import file_name

        config = self._config
        try:
            content = dump.encode()
            if config.flight_record_directory is not None:
                name = file_name(config.client_id, dump.wall, number)
                path = Path(config.flight_record_directory).absolute() / name
                dump.save(path, content)
                text = f"{dump.reason}: flight record written to {path}"
                write(LogLine.FLIGHT_RECORD, text, client_id=config.client_id)
            if config.flight_record_callback is not None:
                config.flight_record_callback(dump.reason, content)
        except Exception as error:  # noqa: BLE001 - whatever the user's callback raises is logged
            self._failed(dump.reason, error)

    def _failed(self, reason: str, error: Exception) -> None:
        text = f"{reason}: the flight record could not be written: {error}"
        write(LogLine.FLIGHT_RECORD_FAILED, text, client_id=self._config.client_id)
