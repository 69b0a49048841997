"""Finding the jars while another process does too: jgo fails over files that turn up meanwhile."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

LOCKS = Path("/proc/locks")
REPOSITORY = Path(os.environ.get("M2_REPO") or Path.home() / ".m2" / "repository")
PROGRAM = "from aioidem.testing.kafka_install import install_kafka; install_kafka('4.3.1')"


def waiters(inode: int) -> bool:
    """Whether somebody waits for a lock of that file."""
    return any("->" in line and f":{inode} " in line for line in LOCKS.read_text().splitlines())


def test_two_processes_do_not_download_at_the_same_time() -> None:
    with (REPOSITORY / ".aioidem.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen([sys.executable, "-c", PROGRAM]) as second:
            gone = time.monotonic() + 60
            while not waiters(os.fstat(lock.fileno()).st_ino):
                assert second.poll() is None
                assert time.monotonic() < gone
                os.sched_yield()  # another process's lock tells no event
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert second.wait(60) == 0
