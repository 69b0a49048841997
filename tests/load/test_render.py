"""Results as text: on a terminal, in a pipe, and in files."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from aioidem._load import render
from aioidem._load.measure import Progress, RunLabel, RunResult, Tally
from aioidem._load.screen import LiveScreen, PlainScreen, Screen, choose_screen
from aioidem._load.usage import output_file
from aioidem.errors import DeliveryTimeoutError
from aioidem.structs import DeliveryStatus


def row(
    in_flight: int = 5, *, batches: int = 3, lost: int = 0, client: str = "aioidem"
) -> RunResult:
    label = RunLabel(client=client, version="0", in_flight=in_flight, record_size=1000)
    tally = Tally(0.0)
    for batch in range(1, batches + 1):
        for _ in range(in_flight):
            tally.queued()
            tally.acknowledged(1000, 0.0, batch * 0.15)
        tally.first_batch_over()
    for _ in range(lost):
        tally.queued()
        tally.failed(DeliveryStatus.NOT_WRITTEN, DeliveryTimeoutError("too [late]"), 1.0)
    return tally.result(label, window=in_flight, rtt_ms=150.0, max_span=in_flight)


PROGRESS = Progress(1.0, 20, 10, 0, 10.0, 0.5, 150.0, 151.0)


# --- lines ----------------------------------------------------------------------------------------


def test_a_progress_line_says_rate_and_latency_and_failures_only_when_there_are_some() -> None:
    line = render.progress_line("5 in flight", PROGRESS)
    assert line == (
        "5 in flight: 10 records acknowledged, 10.0 records/sec (0.50 MB/sec),"
        " 150.0 ms avg latency, 151.0 ms max latency"
    )
    failing = Progress(1.0, 20, 0, 2, 0.0, 0.0, None, None)
    assert render.progress_line("x", failing) == (
        "x: 0 records acknowledged, 0.0 records/sec (0.00 MB/sec), 2 failed"
    )


def test_a_summary_line_says_how_many_of_how_many() -> None:
    """The summary of a run says how many of its records were acknowledged."""
    assert render.summary_line("x", row(lost=1)).startswith("x: 15 of 16 records acknowledged in ")
    assert "steady" not in render.summary_line("x", row(batches=1))


def test_a_complete_run_has_no_failures_to_tell() -> None:
    """A complete run has no line about failures."""
    assert render.failures("x", row()) == []


def test_an_incomplete_run_tells_counts_and_the_first_reason_in_one_line() -> None:
    """An incomplete run has one line with the counts of failures and the first reason."""
    [line] = render.failures("x", row(lost=2))
    assert line == (
        "x: 15 of 17 acknowledged, 2 not written, 0 unknown: DeliveryTimeoutError: too [late]"
    )
    [nothing] = render.failures("x", row(batches=0))
    assert nothing == "x: no record was sent"


# --- the table ------------------------------------------------------------------------------------


def test_the_table_shows_the_speed_up_over_the_first_row() -> None:
    lines = render.table_text([row(1), row(5), row(20)]).splitlines()
    assert lines[1].split("|")[1].strip() == "in flight"
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if "x" in line[-12:]]
    assert [line[-2] for line in cells] == ["1.0x", "5.0x", "20.0x"]
    assert [line[1:4] for line in cells] == [[str(n)] * 3 for n in (1, 5, 20)]


def test_the_table_in_a_pipe_is_plain_ascii_and_unfolded() -> None:
    text = render.table_text([row(1), row(20, lost=1)])
    assert text.isascii()
    assert "\x1b" not in text
    assert len({len(line) for line in text.splitlines()}) == 1


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    results = [replace(row(n), records=123456, records_per_sec=123456.7) for n in (1, 5, 20)]
    console = Console(width=80, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(render.results_table(results))
    text = capture.get()
    assert "…" not in text
    assert "123456.7" in text
    assert "20.0x" in text


def test_columns_that_say_nothing_are_left_out() -> None:
    """The table leaves out columns that have no information."""
    headings = [name for name, _ in render.results_columns([row()])]
    assert "client" not in headings
    assert "unknown" not in headings
    both = [row(client="a"), row(client="b", lost=1)]
    headings = [name for name, _ in render.results_columns(both)]
    assert headings[0] == "client"
    assert headings[-2:] == ["not written", "unknown"]


def test_what_is_not_known_is_a_dash() -> None:
    """The table shows an unknown figure as a dash."""
    empty = Tally(0.0).result(RunLabel(client="c", version="0", in_flight=1, record_size=1))
    cells = {name: cells[0] for name, cells in render.results_columns([empty])}
    for name in ("window", "max span", "steady/s", "p50 ms", "p99 ms", "speed-up"):
        assert cells[name] == "-"


# --- files ----------------------------------------------------------------------------------------


def test_the_json_file_is_a_list_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    render.write_json(path, [row(1), row(5)])
    entries = json.loads(path.read_text())
    assert [entry["in_flight"] for entry in entries] == [1, 5]
    assert entries[0] == json.loads(json.dumps(row(1).as_json()))


def test_a_file_is_replaced_whole_and_readable_as_any_other(tmp_path: Path) -> None:
    """An output file is replaced as a whole, and has the permissions of any new file."""
    path = tmp_path / "out.json"
    path.write_text("old" * 1000)
    render.write_whole(path, "new")
    assert path.read_text() == "new"
    plain = tmp_path / "plain"
    plain.write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_the_longest_name_that_a_file_may_have_is_a_name_for_an_output(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    render.write_whole(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """A failed write keeps the old file, and leaves no temporary file."""
    path = tmp_path / "out.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        render.write_whole(path, "\ud800")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.json"]
    assert path.read_text() == "old"


def test_a_device_can_be_written_to() -> None:
    """If the output is a device such as /dev/null, it is written to and not replaced."""
    render.write_whole(Path("/dev/null"), "text")
    assert not Path("/dev/null").is_file()


# --- statistics -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inner:
    window: int
    topic: str


@dataclass(frozen=True, slots=True)
class Outer:
    records: int
    partitions: tuple[Inner, ...]
    empty: tuple[Inner, ...] = ()


def test_statistics_are_dotted_names_and_values() -> None:
    lines = render.statistics_lines(Outer(7, (Inner(5, "t"), Inner(20, "u"))))
    assert [tuple(line.split(None, 1)) for line in lines] == [
        ("records", "7"),
        ("partitions[0].window", "5"),
        ("partitions[0].topic", "t"),
        ("partitions[1].window", "20"),
        ("partitions[1].topic", "u"),
        ("empty", "()"),
    ]


# --- screens --------------------------------------------------------------------------------------


def play(screen: Screen) -> None:
    with screen:
        for in_flight in (1, 5, 5):
            screen.begin(f"{in_flight} in flight", 3.0)
            screen.update(f"{in_flight} in flight", PROGRESS, 1.0)
            screen.end(f"{in_flight} in flight", row(in_flight))
        screen.note("a note with [brackets]")
        screen.trouble("trouble with [brackets]")
        screen.table([row(1), row(5), row(5)])


def test_a_pipe_gets_plain_lines() -> None:
    """Output into a pipe is plain lines."""
    out, errors = StringIO(), StringIO()
    play(PlainScreen(Console(file=out, width=20), Console(file=errors, width=20)))
    lines = out.getvalue().splitlines()
    assert lines[0] == render.progress_line("1 in flight", PROGRESS)
    assert lines[1] == render.summary_line("1 in flight", row(1))
    assert lines[6] == "a note with [brackets]"
    assert "\n".join(lines[7:]) == render.table_text([row(1), row(5), row(5)])
    assert errors.getvalue() == "trouble with [brackets]\n"
    assert out.getvalue().isascii()


def test_a_terminal_gets_a_bar_for_each_run_and_the_table() -> None:
    """A terminal shows a progress bar for each run, and then the table."""
    out, errors = StringIO(), StringIO()
    play(
        LiveScreen(
            Console(file=out, width=120, force_terminal=True, highlight=False),
            Console(file=errors, width=120),
        )
    )
    text = out.getvalue()
    assert text.count("20 in flight") == 0
    assert "5 in flight" in text
    assert "max" in text
    assert "1.0x" in text
    assert "a note with [brackets]" in text
    assert "trouble with [brackets]" in errors.getvalue()


def test_a_run_that_ends_without_progress_still_ends_on_a_terminal() -> None:
    """A run without any progress ends normally on a terminal."""
    out = StringIO()
    console = Console(file=out, width=120, force_terminal=True)
    with LiveScreen(console, console) as screen:
        screen.begin("1 in flight", None)
        screen.end("1 in flight", row(batches=0))
        screen.table([row(batches=0)])
    assert "window" in out.getvalue()


def test_a_run_that_has_not_begun_leaves_the_bars_of_others_as_they_are() -> None:
    """If the cluster cannot be reached, a run has an end without a beginning."""
    out = StringIO()
    console = Console(file=out, width=120, force_terminal=True)
    with LiveScreen(console, console) as screen:
        screen.end("5 in flight", row(batches=0))
        screen.begin("5 in flight", None)
        screen.end("5 in flight", row(5))
        screen.end("5 in flight", row(batches=0))  # the second run of `--in-flight 5,5`
        screen.table([row(batches=0)])
    shown = out.getvalue()
    assert f"{row(5).acked} acked" in shown
    assert " 0 acked" not in shown


def test_the_screen_is_chosen_by_where_the_output_goes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output to a terminal has progress bars, other output does not."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(choose_screen(), PlainScreen)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(choose_screen(), LiveScreen)
    # Who asks for an interval wants lines.
    asked = choose_screen(0.25)
    assert isinstance(asked, PlainScreen)
    assert asked.interval == 0.25
    assert capsys.readouterr().out == ""


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    render.write_whole(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_what_the_shell_has_opened_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """`--json /dev/stdout > file`: another file in the place of that one would not be read."""
    with (tmp_path / "file").open("w+") as file:
        path = Path("/dev/fd", str(file.fileno()))
        assert output_file("--json", path) == path
        render.write_whole(path, "text")
        assert file.read() == "text"
