"""Write to the standard streams from a thread, so that whoever reads them holds up no event loop.

The reader of a pipe or a terminal may stop to read at any time (`| less`, Ctrl-S), and then a write
waits until it goes on. On the event loop of a measurement the records would wait, too, and be
measured so.

Invariants:

- Text is written in the order in which it comes, to all streams together.
- No write raises. Where one fails, because the reader of the pipe is gone (`| head`) or the disk is
  full, everything else for that stream is dropped. So the run goes on, writes its files and returns
  the right exit status.
- The thread writes to descriptors, and holds no lock of a stream that Python needs to end.
"""

from __future__ import annotations

import io
import os
import sys
from collections import deque
from contextlib import suppress
from threading import Condition, Thread
from typing import IO, Final, TextIO

from aioidem._load.usage import terminal_line

__all__ = ["Spool", "SpooledStream", "output_failed", "silence"]

_BEHIND: Final = 65_536
"""How many characters may wait before nothing is added that can be left out."""


def silence(file: IO[str]) -> None:
    """Redirect a file's descriptor to /dev/null, so that Python reports no broken pipe on exit.

    A file without a descriptor is left as it is.
    """
    try:
        descriptor = file.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def output_failed(name: str, error: OSError) -> int:
    """End a command whose output cannot be written; return its exit status, 1.

    One line says why, unless the reader has closed the pipe (`| head`).
    """
    silence(sys.stdout)
    line = terminal_line(str(error))
    if line and not isinstance(error, BrokenPipeError):
        print(f"{name}: {line}", file=sys.stderr)
    return 1


class Spool:
    """Text on its way to standard streams, and a thread that writes it while there is any."""

    def __init__(self) -> None:
        self._texts: deque[tuple[TextIO, str]] = deque()
        self._size = 0
        self._changed = Condition()
        self._thread: Thread | None = None

    @property
    def behind(self) -> bool:
        """Whether the reader has not taken what was written for a while."""
        return self._size > _BEHIND

    def put(self, stream: TextIO, text: str) -> None:
        """Write the text soon, after all that was put before."""
        with self._changed:
            self._texts.append((stream, text))
            self._size += len(text)
            if self._thread is None:
                self._begin()

    def drain(self) -> None:
        """Wait until everything is written, for as long as it takes the reader."""
        with self._changed:
            while self._texts:
                self._changed.wait()

    def _begin(self) -> None:
        thread = Thread(target=self._work, name="aioidem-output", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system permits no further thread
            self._write_next()
        else:
            self._thread = thread

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._texts:
                    self._thread = None
                    return
            self._write_next()

    def _write_next(self) -> None:
        stream, text = self._texts[0]
        _write(stream, text)
        with self._changed:
            # It counts as waiting until it is written.
            self._texts.popleft()
            self._size -= len(text)
            self._changed.notify_all()


def _write(stream: TextIO, text: str) -> None:
    rest = memoryview(text.encode(stream.encoding, "replace"))
    try:
        while rest:
            rest = rest[os.write(stream.fileno(), rest) :]
    except (OSError, ValueError) as error:  # ValueError: the stream was closed
        silence(stream)
        if not isinstance(error, BrokenPipeError) and stream is not sys.__stderr__:
            why = getattr(error, "strerror", None) or error
            with suppress(OSError, ValueError):  # the same disk may be full for both
                print(f"aioidem: standard output: {why}", file=sys.__stderr__)


class SpooledStream(io.TextIOBase):
    """A standard stream to which a spool writes."""

    def __init__(self, stream: TextIO, spool: Spool) -> None:
        super().__init__()
        stream.flush()  # what was printed before comes first
        self._stream, self._spool = stream, spool

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """See `io.TextIOBase`."""
        return self._stream.encoding

    def write(self, text: str, /) -> int:
        """Let the spool write the text."""
        self._spool.put(self._stream, text)
        return len(text)

    def isatty(self) -> bool:
        """See `io.IOBase`."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """See `io.IOBase`."""
        return self._stream.fileno()
