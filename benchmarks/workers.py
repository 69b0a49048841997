"""Run a client in a process of its own, and read its reports from the lines that it prints.

The worker is `clients.py` for the Python clients, `JavaProducer.java` for Java's. It has one
producer for one partition. It connects, has one record acknowledged, and prints a line for each
event:

    ready VERSION                           it is connected
    sent N                                  record N was handed to the client, counted from 1
    acked N OFFSET                          the client reported an acknowledgement
    failed N not-written|unknown REASON     the client reported a failure
    closed                                  every record has ended after the command `stop`

Its input is `go`, to start sending, and `stop`. The end of its input also means `stop`, so that it
does not outlive its parent. A value's first eight digits are the record's number.

Java's worker adds the time to `sent` and `acked`, in nanoseconds of its own clock, so that a rate
does not depend on the process that reads the lines.

A client other than aioidem does not say whether a failed record is in the log. Where its error is
the broker's refusal of the record itself, or was raised by the call that should have queued it,
that is `not-written`; anything else is `unknown`. An offset that it does not report is -1.

Invariants: every wait is bounded, and no process is left behind, killed or not (`ProcessGuard`).
The client's reports are not trusted here; other code compares them with the log.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from aioidem._testing.kafka_install import KafkaInstall
from aioidem._testing.kafka_process import ProcessGuard

HERE = Path(__file__).parent
JAVA = "Java"

_TIME_AT = {"sent": 0, "acked": 1}
"""The index of the time among the words that follow a record's number."""


class WorkerError(Exception):
    """A worker did not carry out a command, or not in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one worker.

    Args:
        bootstrap: the servers.
        topic: the topic to write to, partition 0.
        warm: the topic for the first record, which shows that the worker is connected.
        rate: records per second; 0 is as fast as `backlog` allows.
        backlog: how many records may be unacknowledged.
        size: the size of a value in bytes, except for record `big`, which has `bigsize`.
        sequence: the partition's first sequence number.
        deadline: the seconds within which the client itself must end a record; all its options for
            that have this value, and so has the time for which queueing may block.
        request_timeout: the seconds it waits for one answer.
        batch_size: the size of a batch in bytes.
        patience: the seconds for closing.
    """

    bootstrap: str
    topic: str
    warm: str
    rate: float = 0.0
    backlog: int = 100_000
    size: int = 100
    big: int = -1
    bigsize: int = 0
    sequence: int = 0
    deadline: float = 30.0
    request_timeout: float = 10.0
    batch_size: int = 16_384
    patience: int = 50


@dataclass(slots=True)
class Sent:
    """One record: when it was handed to the client, and how it ended."""

    at: float
    ended: float | None = None
    outcome: str = "pending"
    offset: int = -1
    reason: str = ""


Listener = Callable[[str, int, float | None], None]


class Worker:
    """One worker process.

    Args:
        command: the command that starts it.
        guard: kills the process if nothing else ends it.
        listener: called in a thread with "sent", "acked" or "failed", the record's number, and the
            time by the worker's clock in seconds, if the worker prints it.
    """

    def __init__(
        self, command: Sequence[str], guard: ProcessGuard, listener: Listener | None = None
    ) -> None:
        self.version = "?"
        self.records: dict[int, Sent] = {}
        self.trouble: list[str] = []
        self._command = list(command)
        self._guard = guard
        self._listener = listener
        self._changed = threading.Condition()
        self._ready = self._closed = False
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> Self:
        """Start the process."""
        self._process = process = subprocess.Popen(  # noqa: S603 - our own workers
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._guard.watch_group(process.pid)
        self._readers = [
            threading.Thread(target=read, args=(pipe,), daemon=True)
            for read, pipe in ((self._read, process.stdout), (self._complain, process.stderr))
        ]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill the process if it is still running."""
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        self._guard.forget_group(process.pid)
        for reader in self._readers:
            reader.join(10)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    # -- commands and waiting ----------------------------------------------------------------------

    def until_ready(self, timeout: float) -> None:
        """Wait until the worker is connected.

        Raises:
            WorkerError: the worker did not connect in time, or it has ended.
        """
        if not self._wait(lambda: self._ready or not self._running, timeout) or not self._ready:
            if not self._running:
                # The worker has ended, but the last lines of its output may not have been read yet.
                for reader in self._readers:
                    reader.join(10)
            # The latest line comes first, because a note is cut at its end.
            raise WorkerError("not connected: " + "; ".join(reversed(self.trouble[-3:])))

    def go(self) -> None:
        """Command the worker to begin sending."""
        self._tell("go\n")

    def stop(self) -> None:
        """Command the worker to stop sending, and to close when every record has ended."""
        self._tell("stop\n")

    def until_closed(self, timeout: float) -> bool:
        """Wait until the worker has closed or its process has ended; return whether it closed."""
        self._wait(lambda: self._closed or not self._running, timeout)
        return self._closed

    def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until a condition on the worker's reports is true; return whether it is."""
        return self._wait(lambda: condition() or not self._running, timeout) and condition()

    @property
    def acked(self) -> int:
        """Return how many records the worker reported as acknowledged."""
        with self._changed:
            return sum(each.outcome == "acked" for each in self.records.values())

    @property
    def _running(self) -> bool:
        # The worker counts as ended only after the rest of its output was read.
        return bool(self._readers) and self._readers[0].is_alive()

    def _wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        end = time.monotonic() + timeout
        with self._changed:
            while not condition():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.5))
        return True

    def _tell(self, word: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.write(word)
                self._process.stdin.flush()

    # -- the worker's output -----------------------------------------------------------------------

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            verb, _, rest = line.rstrip("\n").partition(" ")
            with self._changed:
                self._take(verb, rest)
                self._changed.notify_all()
            if self._listener is not None and verb in {"sent", "acked", "failed"}:
                number, *more = rest.split(" ", 2)
                # A record's offset precedes the time; a failure has no offset.
                told = more[_TIME_AT[verb] :] if verb in _TIME_AT else []
                self._listener(verb, int(number), int(told[0]) / 1e9 if told else None)
        with self._changed:
            self._changed.notify_all()

    def _take(self, verb: str, rest: str) -> None:
        now = time.monotonic()
        match verb, rest.split(" ", 2):
            case "ready", [version, *_]:
                self.version, self._ready = version, True
            case "closed", _:
                self._closed = True
            case "sent", [number, *_]:
                self.records[int(number)] = Sent(now)
            case "acked", [number, offset, *_]:
                record = self.records[int(number)]
                record.ended, record.outcome, record.offset = now, "acked", int(offset)
            case "failed", [number, outcome, reason]:
                record = self.records[int(number)]
                record.ended, record.outcome, record.reason = now, outcome, reason
            case _:
                self.trouble.append(f"{verb} {rest}")

    def _complain(self, pipe: IO[str]) -> None:
        for line in pipe:
            self.trouble = [*self.trouble[-200:], line.rstrip("\n")]


def python_worker(client: str, work: Work) -> list[str]:
    """Return the command that starts a Python client's worker."""
    return [sys.executable, str(HERE / "clients.py"), client, json.dumps(asdict(work))]


def java_worker(install: KafkaInstall, work: Work, properties: Mapping[str, str] = {}) -> list[str]:
    """Return the command that starts Java's producer: idempotent, with five requests in flight.

    ``properties`` override its settings.

    Raises:
        WorkerError: there is only a JRE, which has no compiler.
    """
    if not has_compiler(install):
        raise WorkerError(f"Java's producer needs a JDK: {install.java} cannot compile")
    job = {
        name: value
        for name, value in asdict(work).items()
        if name in {"topic", "warm", "rate", "backlog", "size", "big", "bigsize", "sequence"}
    }
    config = {
        "bootstrap.servers": work.bootstrap,
        "enable.idempotence": "true",
        "max.in.flight.requests.per.connection": 5,
        "batch.size": work.batch_size,
        "linger.ms": 0,
        "delivery.timeout.ms": round(1000 * work.deadline),
        "max.block.ms": round(1000 * work.deadline),
        "request.timeout.ms": round(1000 * work.request_timeout),
        **properties,
    }
    arguments = {**job, "patience": work.patience, **config}
    return [
        *(str(install.java), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", install.class_path()),
        str(HERE / "JavaProducer.java"),
        *(f"{name}={value}" for name, value in arguments.items()),
    ]


def has_compiler(install: KafkaInstall) -> bool:
    """Return whether this Java can run a source file, which a JDK can and a JRE cannot."""
    beside = install.java.resolve().parent / "javac"
    return beside.exists() or shutil.which("javac", path=str(install.java.parent)) is not None
