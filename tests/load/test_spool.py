"""Whoever reads the output holds up no event loop, and gets all of it that matters, in order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import TextIO

import pytest

from aioidem._load import spool as spools
from aioidem._load.measure import Progress
from aioidem._load.screen import LiveScreen, PlainScreen, choose_screen
from aioidem._load.spool import Spool

PROGRESS = Progress(
    elapsed=1.0,
    records=7,
    acked=7,
    records_per_sec=7.0,
    mb_per_sec=0.1,
    avg_ms=1.0,
    max_ms=2.0,
    failed=0,
)
MANY = 10_000


class Pipe:
    """A pipe of which only `rest` reads."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        self.stream: TextIO = os.fdopen(writing, "w", encoding="utf-8")

    def rest(self) -> str:
        """Close the end for writing once all is written, and return what arrived."""
        with os.fdopen(self.reading, encoding="utf-8", newline="") as reader:
            return reader.read()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """Return a pipe, and close its end for writing."""
    made = Pipe()
    yield made
    made.stream.close()


def ended(pipe: Pipe, spool: Spool) -> Thread:
    """Close the pipe's end for writing as soon as all is written."""

    def end() -> None:
        spool.drain()
        pipe.stream.close()

    thread = Thread(target=end)
    thread.start()
    return thread


def test_nobody_waits_for_a_reader_that_does_not_read(pipe: Pipe) -> None:
    """What was put arrives in its order, when it is read."""
    spool = Spool()
    lines = [f"{number} é\n" for number in range(MANY * 2)]
    for line in lines:
        spool.put(pipe.stream, line)
    assert spool.behind
    thread = ended(pipe, spool)
    assert pipe.rest() == "".join(lines)
    thread.join()
    assert not spool.behind


def test_a_reader_that_is_gone_is_no_error(pipe: Pipe, capfd: pytest.CaptureFixture[str]) -> None:
    spool = Spool()
    os.close(pipe.reading)
    for _ in range(3):
        spool.put(pipe.stream, "x\n")
        spool.drain()
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_an_output_and_a_standard_error_that_are_full_hold_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spool = Spool()
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "__stderr__", full)
        for _ in range(3):
            spool.put(full, "x\n")
            spool.drain()
    assert not spool.behind


def test_without_a_thread_the_text_is_written_at_once(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system permits no further thread, the output takes the way that it took before."""

    class NoThread:
        def __init__(self, **_: object) -> None:
            pass

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(spools, "Thread", NoThread)
    spool = Spool()
    spool.put(pipe.stream, "one\n")
    spool.put(pipe.stream, "two\n")
    spool.drain()
    pipe.stream.close()
    assert pipe.rest() == "one\ntwo\n"


@pytest.mark.parametrize("kind", [PlainScreen, LiveScreen])
def test_progress_that_nobody_reads_is_left_out_and_results_are_not(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, kind: type[object]
) -> None:
    """The measurement goes on; its lines are there when the reader goes on, too."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    screen = choose_screen(None if kind is LiveScreen else 1.0)
    assert type(screen) is kind
    screen.begin("run", None)
    for number in range(MANY):
        screen.update("run", PROGRESS, number)
        if kind is LiveScreen:
            screen.note(f"note {number}")
    screen.note("the last note")
    arrived: list[str] = []
    reader = Thread(target=lambda: arrived.append(pipe.rest()))
    reader.start()
    with screen:
        pass
    pipe.stream.close()
    reader.join()
    assert "the last note" in arrived[0]
    if kind is PlainScreen:
        assert 0 < arrived[0].count("7 records acknowledged") < MANY
    else:
        assert f"note {MANY - 1}\n" in arrived[0]


@pytest.mark.parametrize("interval", [None, 1.0], ids=["live", "plain"])
def test_an_interruption_does_not_wait_for_the_reader(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, interval: float | None
) -> None:
    """Ctrl-C while the table waits for the reader ends the command."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", pipe.stream)
    screen = choose_screen(interval)
    screen.note("more than a pipe takes ".ljust(200_000))
    with pytest.raises(KeyboardInterrupt), screen:
        raise KeyboardInterrupt
    reader = Thread(target=pipe.rest)
    reader.start()
    with screen:
        pass
    pipe.stream.close()
    reader.join()
