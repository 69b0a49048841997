"""Broker processes that end with the process that started them, however it ends.

A `ProcessGuard` is a small process that reads a pipe from this one, and so learns of each process
group and directory. When the pipe closes, because the guard was closed or this process has ended
(by an exception, ``os._exit`` or SIGKILL), it kills the groups, removes the directories and ends.
There is one way of cleaning up, and every end of a test takes it.

Invariants
    A child has its own session and process group, so no Ctrl-C of a terminal reaches it, and all
    processes that it started are killed with it. A group is forgotten once its process has been
    waited for, because its number may be reused. Methods block for a moment (fork, files, a pipe):
    call them from a thread where an event loop runs. POSIX only.

Rejected
    atexit alone (it does not run after a signal or ``os._exit``); PR_SET_PDEATHSIG (it fires when
    the starting *thread* ends, and ours are pooled); supervising in the JVM (no hook survives
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


# Reports itself to the guard through the pipe that is its stdin, then becomes the command.
# While it holds the pipe the guard keeps reading, so at every moment something would end it.
_ENROL: Final = ("/bin/sh", "-c", 'echo "group $$" >&0 && exec "$@" </dev/null', "enrol")


class ProcessGuard:
    """Kills groups and removes directories when it is closed, or when this process ends."""

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
        """Have a directory removed in the end."""
        self._tell(f"folder {folder}")

    def watch_group(self, group: int) -> None:
        """Have a process group killed in the end."""
        self._tell(f"group {group}")

    def start(
        self,
        command: Sequence[str],
        log: IO[bytes],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command in a process group that is watched before the command runs.

        Its output is appended to the log.

        Raises:
            KafkaError: The guard was closed.
        """
        pipe = self._process.stdin
        if pipe is None or pipe.closed:
            raise KafkaError("the guard was closed, and nothing would end the process")
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
        """Stop watching a group, which has ended."""
        self._tell(f"forget {group}")

    def close(self) -> None:
        """Clean up, and return when that is done.

        Raises:
            KafkaError: It took too long; something may be left behind.
        """
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            raise KafkaError(
                f"processes and files are not removed after {_GUARD_SECONDS:g} s"
            ) from None

    def _tell(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            # One write, which a pipe does not split: several threads may write.
            os.write(pipe.fileno(), f"{line}\n".encode())


class KafkaProcess:
    """One Java process that may be started again.

    Args:
        command: The command.
        log: File that its output is appended to.
        guard: Ends it if nothing else does.
        env: Its environment; None: this process's own.
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
        """Return the id of the process and of its group; None before the first start."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """Return whether it was started and has not ended."""
        return self._process is not None and self.exit_code() is None

    @property
    def paused(self) -> bool:
        """Return whether it runs, and was sent SIGSTOP and no SIGCONT since."""
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
        """Return its exit code; None while it runs or before it was started. Does not block."""
        return None if self._process is None else self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to its whole group, if it runs; after SIGSTOP, wait until it has stopped.

        Raises:
            KafkaError: It does not stop.
        """
        if self._process is not None and self.running:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            if number in {signal.SIGSTOP, signal.SIGCONT}:
                self._stopped = number == signal.SIGSTOP
            if number == signal.SIGSTOP:
                _wait_until_stopped(self._process.pid)

    def wait(self, timeout: float) -> None:
        """Wait until it has ended.

        Raises:
            KafkaError: It has not ended within ``timeout`` seconds.
        """
        if self._process is None:
            return
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise KafkaError(
                f"process {self._process.pid} did not end within {timeout:g} s"
            ) from None
        self._forget()

    def _forget(self) -> None:
        if self._process is not None and not self.running:
            self._guard.forget_group(self._process.pid)

    def tail(self, lines: int = 30) -> str:
        """Return the end of its log."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


def _wait_until_stopped(pid: int) -> None:
    """Return when a child has stopped or ended, without reaping it.

    kill(2) returns when the signal is pending: one thread takes it when it is next scheduled, and
    the others run on until then. The parent is notified when the last one has stopped.
    """
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return
    what = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
    until = time.monotonic() + _STOP_SECONDS
    with suppress(ChildProcessError):
        while os.waitid(os.P_PID, pid, what) is None:
            if time.monotonic() > until:
                raise KafkaError(
                    f"process {pid} did not stop within {_STOP_SECONDS:g} s of SIGSTOP"
                )
            time.sleep(_POLL_SECONDS)


def reserve_port(host: str = "127.0.0.1") -> int:
    """Return a free TCP port that the kernel assigns to no other socket for about a minute.

    This leaves a connection of the port in TIME_WAIT. A server that sets SO_REUSEADDR, as Java's
    do, can still bind it.
    """
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection((host, port)) as client:
            accepted, _ = server.accept()
            # The side that closes first is the one in TIME_WAIT.
            accepted.close()
            client.recv(1)
    return port
