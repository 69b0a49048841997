"""`install_kafka` while another process downloads, and with a broken Maven repository."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

from aioidem._jars import jar_folder

LOCKS = Path("/proc/locks")
PROGRAM = "from aioidem._testing.kafka_install import install_kafka; install_kafka('4.3.1')"


def waiters(inode: int) -> bool:
    """Return whether a process waits for a lock of the file with this inode."""
    return any("->" in line and f":{inode} " in line for line in LOCKS.read_text().splitlines())


def test_two_processes_do_not_download_at_the_same_time() -> None:
    """A process does not download jars while another one holds the lock of the jars' folder."""
    with (jar_folder() / ".aioidem.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen([sys.executable, "-c", PROGRAM]) as second:
            gone = time.monotonic() + 60
            while not waiters(os.fstat(lock.fileno()).st_ino):
                assert second.poll() is None
                assert time.monotonic() < gone
                os.sched_yield()  # there is no event for a process that waits for a lock
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert second.wait(60) == 0


def test_half_a_jar_in_maven_s_repository_does_not_matter(tmp_path: Path) -> None:
    """`install_kafka` ignores an incomplete jar in the user's Maven repository."""
    half = tmp_path / ".m2/repository/org/apache/kafka/kafka-clients/4.3.1/kafka-clients-4.3.1.jar"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"PK\3\4")
    cache = str(jar_folder().parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": cache},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
