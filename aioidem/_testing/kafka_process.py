"""Broker processes that end with the one that started them, however it ends.

A `ProcessGuard` is a small process of its own that reads a pipe from us. It learns of each process
group and directory; when the pipe closes, because we closed it or because we are gone (an
exception, ``os._exit``, SIGKILL), it kills the groups, removes the directories and ends. There is
one way of cleaning up, and every end of a test takes it.

Invariants: a child is its own session and process group, so no Ctrl-C of a terminal reaches it and
all it may have started dies with it; a group is forgotten once its process has been waited for,
because its number may be taken again. Methods block for a moment (fork, files, a pipe): call
them from a thread where an event loop runs. POSIX only.

Rejected: atexit alone (it does not run after a signal or ``os._exit``); PR_SET_PDEATHSIG (it fires
when the starting *thread* ends, and ours are pooled); supervising in the JVM (no hook survives
SIGKILL either).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from aioidem.errors import KafkaError

__all__ = ["KafkaProcess", "ProcessGuard", "reserve_port"]

_GUARD_SECONDS: Final = 15.0
_STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.001
_GUARD: Final = """
import os, shutil, signal, sys, time
groups, folders = set(), []
for line in sys.stdin:
    verb, what = line.rstrip("\\n").split(" ", 1)
    if verb == "group":
        groups.add(int(what))
    elif verb == "forget":
        groups.discard(int(what))
    else:
        folders.append(what)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
for folder in folders:
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            break
        time.sleep(0.1)
"""


# Says to the guard, by the pipe it has as its stdin, who it is, and becomes what it was given.
# While it has that pipe the guard reads on: there is no moment at which nobody would end it.
_ENROL: Final = ("/bin/sh", "-c", 'echo "group $$" >&0 && exec "$@" </dev/null', "enrol")


class ProcessGuard:
    """Ends what it was told of when it is closed, or when this process is gone."""

    __slots__ = ("_process",)

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this Python
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def watch_folder(self, folder: Path) -> None:
        """Remove it in the end."""
        self._tell(f"folder {folder}")

    def watch_group(self, group: int) -> None:
        """Kill it in the end."""
        self._tell(f"group {group}")

    def start(
        self,
        command: Sequence[str],
        log: IO[bytes],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run it in a group of its own, which is watched before it runs; its output goes there.

        :raises KafkaError: the guard was closed.
        """
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            raise KafkaError("nobody would end it: the guard was closed")
        return subprocess.Popen(  # noqa: S603 - made by KafkaCluster
            [*_ENROL, *command],
            stdin=pipe,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env=env,
        )

    def forget_group(self, group: int) -> None:
        """It is gone."""
        self._tell(f"forget {group}")

    def close(self) -> None:
        """Clean up, and return when that is done.

        :raises KafkaError: it took too long; something is left behind.
        """
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            raise KafkaError("brokers could not be cleaned up in time") from None

    def _tell(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            # One write, which a pipe does not split: threads may tell at the same time.
            os.write(pipe.fileno(), f"{line}\n".encode())


class KafkaProcess:
    """One Java process that may be started again.

    :param command: what to run.
    :param log: gets its output, appended.
    :param guard: ends it if nobody else does.
    :param env: its environment; None: this process's own.
    """

    __slots__ = ("_command", "_env", "_guard", "_process", "_stopped", "log")

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        guard: ProcessGuard,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self._env = env
        self._command = list(command)
        self._guard = guard
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __repr__(self) -> str:
        pid = None if self._process is None else self._process.pid
        return f"<KafkaProcess pid={pid} running={self.running}>"

    @property
    def pid(self) -> int | None:
        """Of the process, which is also its group's; None before the first start."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self.exit_code() is None

    @property
    def paused(self) -> bool:
        """Whether it runs, and was sent SIGSTOP and no SIGCONT since."""
        return self._stopped and self.running

    def start(self) -> None:
        """Start it, if it is not running."""
        if self.running:
            return
        self._forget()
        self._stopped = False
        with self.log.open("ab") as log:
            self._process = self._guard.start(self._command, log, env=self._env)

    def exit_code(self) -> int | None:
        """How it ended; None while it runs or before it was started. Does not block."""
        return None if self._process is None else self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """To its whole group, if it runs; returns from SIGSTOP when all its threads stand still.

        :raises KafkaError: they do not.
        """
        if self._process is not None and self.running:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            if number in {signal.SIGSTOP, signal.SIGCONT}:
                self._stopped = number == signal.SIGSTOP
            if number == signal.SIGSTOP:
                _wait_until_stopped(self._process.pid)

    def wait(self, timeout: float) -> None:
        """Return when it has ended.

        :raises KafkaError: it has not after so many seconds.
        """
        if self._process is None:
            return
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise KafkaError(f"process {self._process.pid} does not end") from None
        self._forget()

    def _forget(self) -> None:
        if self._process is not None and not self.running:
            self._guard.forget_group(self._process.pid)

    def tail(self, lines: int = 30) -> str:
        """The end of its log."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


def _wait_until_stopped(pid: int) -> None:
    """Return when a child has stopped or ended, without taking that from who waits for its end.

    kill(2) returns when the signal is pending: one thread takes it, when it is next scheduled, and
    the others run on until it does. The parent is told when the last one has stopped.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return
    what = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
    until = time.monotonic() + _STOP_SECONDS
    with suppress(ChildProcessError):
        while os.waitid(os.P_PID, pid, what) is None:
            if time.monotonic() > until:
                raise KafkaError(f"process {pid} does not stop")
            time.sleep(_POLL_SECONDS)


def reserve_port(host: str = "127.0.0.1") -> int:
    """A free TCP port that the kernel gives to nobody who asks for any port, for a minute.

    A connection of it is left in TIME_WAIT: a server that sets SO_REUSEADDR, as Java's do, may
    listen there nevertheless.
    """
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection((host, port)) as client:
            accepted, _ = server.accept()
            # The side that closes first is the one that waits.
            accepted.close()
            client.recv(1)
    return port
