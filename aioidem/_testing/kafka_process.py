"""Broker processes that end when the process that started them ends, in whatever way.

A `ProcessGuard` is a small process. Through a pipe it learns from this process which process groups
to kill and which directories to remove. The pipe closes when the guard is closed, and when this
process ends (by an exception, ``os._exit`` or SIGKILL). Then the guard kills the groups, removes
the directories and ends. So everything is cleaned up in the same way, however a test ends.

Invariants
    A child has its own session and process group, so Ctrl-C in a terminal does not reach it, and
    all processes that it started are killed with it.
    The guard forgets a group once its process has been waited for, because the system may reuse
    the number of the group.
    Methods block for a moment (fork, files, a pipe): if an event loop runs, call them from a
    thread. This works on POSIX only.

Rejected
    atexit alone: it does not run after a signal or ``os._exit``. PR_SET_PDEATHSIG: the signal is
    sent when the starting *thread* ends, and brokers are started in threads of a pool. Shutdown
    hooks in the JVM: they do not run after SIGKILL.
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


# This shell program reports its process group to the guard through the pipe, which is the program's
# standard input, and then becomes the command. The guard reads until all writers have closed the
# pipe. So the guard learns of the group even if the process that started the program ends first.
_ENROL: Final = ("/bin/sh", "-c", 'echo "group $$" >&0 && exec "$@" </dev/null', "enrol")


class ProcessGuard:
    """Kills process groups and removes directories when it is closed or this process ends."""

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
        """Make the guard remove a directory when the guard ends."""
        self._tell(f"folder {folder}")

    def watch_group(self, group: int) -> None:
        """Make the guard kill a process group when the guard ends."""
        self._tell(f"group {group}")

    def start(
        self,
        command: Sequence[str],
        log: IO[bytes],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command in a new process group, which the guard watches before the command runs.

        The output of the command is appended to the log.

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
        """Stop watching a group that has ended."""
        self._tell(f"forget {group}")

    def close(self) -> None:
        """Kill the groups and remove the directories, and return when that is done.

        Raises:
            KafkaError: The guard took too long; processes or files may be left behind.
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
            # A pipe does not split a single short write, so several threads may write at once.
            os.write(pipe.fileno(), f"{line}\n".encode())


class KafkaProcess:
    """One Java process, which can be started again after it has ended.

    Args:
        command: The command.
        log: File that the output of the process is appended to.
        guard: Kills the process if nothing else ends it.
        env: Environment of the process; None: that of this process.
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
        """Return whether the process was started and has not ended."""
        return self._process is not None and self.exit_code() is None

    @property
    def paused(self) -> bool:
        """Return whether the process is stopped by SIGSTOP and has not ended."""
        return self._stopped and self.running

    def start(self) -> None:
        """Start the process, if it is not running."""
        if self.running:
            return
        self._forget()
        self._stopped = False
        with self.log.open("ab") as log:
            self._process = self._guard.start(self._command, log, env=self._env)

    def exit_code(self) -> int | None:
        """Return the exit code, without blocking; None if the process runs or was never started."""
        return None if self._process is None else self._process.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group, if it runs; wait for the effect of SIGSTOP.

        Raises:
            KafkaError: The process does not stop after SIGSTOP.
        """
        if self._process is not None and self.running:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            if number in {signal.SIGSTOP, signal.SIGCONT}:
                self._stopped = number == signal.SIGSTOP
            if number == signal.SIGSTOP:
                _wait_until_stopped(self._process.pid)

    def wait(self, timeout: float) -> None:
        """Wait until the process has ended.

        Raises:
            KafkaError: The process has not ended within ``timeout`` seconds.
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
        """Return the last lines of the log."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


def _wait_until_stopped(pid: int) -> None:
    """Wait until a child process has stopped or ended, without reaping it.

    kill(2) returns when SIGSTOP is pending. One thread of the child handles SIGSTOP when the thread
    is next scheduled, and the other threads run on until then. The parent is notified when all
    threads have stopped.
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

    The function leaves a connection of the port in TIME_WAIT. A server that sets SO_REUSEADDR, as
    servers in Java do, can still bind the port.
    """
    with socket.create_server((host, 0)) as server:
        port: int = server.getsockname()[1]
        with socket.create_connection((host, port)) as client:
            accepted, _ = server.accept()
            # The side with ``port`` closes first, and so keeps the connection in TIME_WAIT.
            accepted.close()
            client.recv(1)
    return port
