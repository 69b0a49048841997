"""`KafkaProcess` ends together with the process that started it, and stops on SIGSTOP."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from aioidem._testing.kafka_process import KafkaProcess, ProcessGuard

# The program kills itself as soon as the child has been started.
PROGRAM = """
import os, signal, subprocess, sys
from pathlib import Path
from aioidem._testing.kafka_process import KafkaProcess, ProcessGuard

class Killed(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

guard = ProcessGuard()
subprocess.Popen = Killed
KafkaProcess(["sleep", "200"], Path(sys.argv[1]), guard).start()
"""


def test_killed_while_it_starts_a_process_it_leaves_none(tmp_path: Path) -> None:
    """A program that is killed while it starts a `KafkaProcess` leaves no child running."""
    log = tmp_path / "log"
    os.mkfifo(log)
    # A pipe ends when the last process that could write to it has ended.
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = subprocess.run([sys.executable, "-c", PROGRAM, log], check=False, timeout=60)
        assert done.returncode == -9
        assert select.select([reader], [], [], 30)[0]
        assert os.read(reader, 1000) == b""
    finally:
        os.close(reader)


# The threads are always runnable, so that it takes the kernel a moment to stop them all.
BUSY = """
import os, threading
for _ in range(8):
    threading.Thread(target=lambda: [os.sched_yield() for _ in iter(int, 1)]).start()
print("up", flush=True)
"""


def test_every_thread_stands_still_when_sigstop_has_been_sent(tmp_path: Path) -> None:
    """When `send_signal(SIGSTOP)` returns, every thread of the process has stopped."""
    os.mkfifo(tmp_path / "log")
    guard = ProcessGuard()
    process = KafkaProcess([sys.executable, "-c", BUSY], tmp_path / "log", guard)
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    try:
        process.start()
        assert select.select([reader], [], [], 30)[0]
        tasks = Path(f"/proc/{process.pid}/task")
        for _ in range(50):
            process.send_signal(signal.SIGSTOP)
            states = [(each / "stat").read_text().rpartition(")")[2][1] for each in tasks.iterdir()]
            assert process.paused
            assert set(states) == {"T"}, states
            process.send_signal(signal.SIGCONT)
            assert not process.paused
        process.send_signal(signal.SIGSTOP)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        os.close(reader)
        guard.close()
    assert process.exit_code() == -9
