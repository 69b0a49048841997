"""A process that is started under a guard dies with us, at whatever moment we are killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

# The first thing that happens once the child has been started is that we are killed.
PROGRAM = """
import os, signal, subprocess, sys
from pathlib import Path
from aioidem.testing.kafka_process import KafkaProcess, ProcessGuard

class Killed(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

guard = ProcessGuard()
subprocess.Popen = Killed
KafkaProcess(["sleep", "200"], Path(sys.argv[1]), guard).start()
"""


def test_killed_while_it_starts_a_process_it_leaves_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)
    # Of a pipe the end comes when the last one who might write to it is gone.
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = subprocess.run([sys.executable, "-c", PROGRAM, log], check=False, timeout=60)
        assert done.returncode == -9
        assert select.select([reader], [], [], 30)[0]
        assert os.read(reader, 1000) == b""
    finally:
        os.close(reader)
