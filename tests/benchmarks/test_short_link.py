"""`benchmarks/short_link.py` runs every client that is installed, and checks its arguments.

The runs are short and on the embedded broker. Their figures are not checked, because that would
take a quiet machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
TINY = ("--embedded", "--busy", "--rounds", "1", "--seconds", "1", "--warm-up", "0.1")


def run(*flags: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "short_link.py", *flags],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        # Test the checkout, even if another aioidem is installed.
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == status, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def rows(where: Path, *flags: str, status: int = 0) -> dict[str, dict[str, Any]]:
    """Run one scenario, and return its rows by client."""
    run(*TINY, *flags, "--json", str(where / "found.json"), status=status)
    [table] = json.loads((where / "found.json").read_text())["tables"]
    return {row["client"]: row for row in table["rows"]}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "clients"),
    [
        ("await+10tasks+keys", ("aioidem", "aiokafka-pure", "confluent-kafka")),
        ("one", ("aioidem-drop-in", "kafka-python")),
        ("queue+1000B+1p+zstd", ("aioidem", "confluent-aio")),
        ("bulk", ("aioidem-drop-in", "confluent-kafka")),
        ("bulk+keys", ("aioidem", "confluent-kafka")),
        ("table+keys", ("aioidem", "confluent-kafka")),
    ],
)
def test_each_client_has_figures(tmp_path: Path, way: str, clients: tuple[str, ...]) -> None:
    """Each client reports a rate, CPU time and memory, or says why it cannot run the scenario."""
    found = rows(tmp_path, "--scenarios", way, "--clients", *clients)
    assert set(found) == set(clients)
    for client, row in found.items():
        assert not row["failed"], row
        if row["cannot"]:
            assert way.startswith("await"), row
            assert client == "confluent-kafka"
            continue
        [figures] = row["rounds"]
        assert figures["acked"] > 0
        assert min(figures[each] for each in ("records_per_sec", "peak_rss_mb")) > 0
        assert figures["cpu_us_per_record"] > 0
        assert (figures["latency_ms"] is not None) == (way == "one")


@pytest.mark.slow
def test_the_pure_form_runs_without_extensions(tmp_path: Path) -> None:
    """The rows named pure have run in pure Python, and say so."""
    clients = ("aioidem-pure", "aiokafka-pure")
    found = rows(tmp_path, "--scenarios", "start", "--clients", *clients)
    for client in clients:
        [figures] = found[client]["rounds"]
        assert figures["version"].endswith(" pure")
        assert figures["first_ack_s"] > 0


@pytest.mark.slow
def test_paced_and_idle(tmp_path: Path) -> None:
    """A paced run reports percentiles and the rate asked for; an idle run reports the CPU share."""
    found = rows(tmp_path, "--scenarios", "paced", "--clients", "aioidem", "--rate", "500")
    [figures] = found["aioidem"]["rounds"]
    assert figures["asked_rate"] == 500
    assert list(figures["latency_ms"]) == ["p50", "p99", "p99.9", "max"]
    assert figures["late_ms"] >= 0
    found = rows(tmp_path, "--scenarios", "idle", "--clients", "aioidem")
    assert found["aioidem"]["rounds"][0]["cpu_percent"] >= 0


def test_a_client_that_fails_is_in_the_table(tmp_path: Path) -> None:
    """A run that fails is a row with its error, and makes the exit status 1."""
    flags = ("--scenarios", "queue+2000000B", "--clients", "aioidem")
    found = rows(tmp_path, *flags, status=1)
    assert "MessageSizeTooLargeError" in found["aioidem"]["failed"]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--scenarios", "quick"), "'quick' is none of await, one, queue"),
        (("--scenarios", "queue+5x"), "'5x' is no variation"),
        (("--scenarios", "queue+10tasks"), "only 'await' has tasks"),
        (("--scenarios", "queue+4p+32p"), "two variations set partitions"),
        (("--scenarios", "long-link+32p"), "expected a round trip"),
        (("--clients", "aiokafka", "sarama"), "invalid choice: 'sarama'"),
        (("--rounds", "0"), "0 is not at least 1"),
        (("--seconds", "0"), "0 is not above 0"),
        (("--seconds", "nan"), "nan is not above 0"),
        (("--warm-up", "-1"), "-1 is below 0"),
        (("--json", "no-such-folder/found.json"), "there is no folder no-such-folder"),
        (("--document", "Makefile"), "no such page with a place for the tables"),
        (("--document", "no-such-page"), "no such page"),
        (("--read", "no-such-file"), "no such file"),
        (("--profile", "p", "--clients", "Java"), "only a run of a Python client"),
    ],
)
@pytest.mark.usefixtures("scripts")
def test_bad_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], complaint: str
) -> None:
    """A bad argument ends the program with a message that names it."""
    from short_link import parse

    with pytest.raises(SystemExit) as ended:
        parse(flags)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.usefixtures("scripts")
def test_a_file_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that the script did not write cannot be formatted, and the message says so."""
    from short_link import main

    for content in ("no JSON", "{}", "[]"):
        (tmp_path / "found.json").write_text(content)
        assert main(["--read", str(tmp_path / "found.json")]) == 2
        assert "is none of its files" in capsys.readouterr().err


@pytest.mark.slow
def test_a_long_link(tmp_path: Path) -> None:
    """A long link's table has a row for each window (batches in flight), and for late sealing."""
    flags = ("--scenarios", "long-link+20ms+100Mbit", "--link-seconds", "0.5")
    run("--embedded", "--busy", *flags, "--json", str(tmp_path / "found.json"))
    [table] = json.loads((tmp_path / "found.json").read_text())["tables"]
    assert not table["failed"]
    found = {(row["client"], row["in_flight"]) for row in table["links"]}
    sealed = {("aioidem", window) for window in (1, 5, 20)}
    assert found >= sealed | {("aioidem, sealing late", window) for window in (5, 20)}


@pytest.mark.usefixtures("scripts")
def test_the_default_takes_a_quarter_of_an_hour_at_most() -> None:
    """What `make bench-short` runs is estimated at no more than 15 minutes."""
    from short_link import estimate, parse

    assert estimate(parse([])) <= 15 * 60


@pytest.mark.usefixtures("scripts")
def test_a_busy_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --busy nothing is measured while other programs run."""
    from short_link import main

    monkeypatch.setattr(os, "getloadavg", lambda: (64.0, 64.0, 64.0))
    assert main(["--embedded"]) == 2
    assert "load average is 64" in capsys.readouterr().err


def reported() -> Any:
    """Make a report of four clients, of which one cannot run the scenario and one has failed."""
    from machine import Machine
    from short_link_job import Figures
    from short_link_report import Report, Row, Table
    from short_link_scenarios import scenario

    def ran(*rates: float) -> list[Figures]:
        return [
            Figures(version="1.0", acked=1, records_per_sec=rate, cpu_us_per_record=1e6 / rate)
            for rate in rates
        ]

    machine = Machine(
        date="2026-01-01 00:00 UTC",
        cpu="a CPU",
        cores=2,
        load=0.0,
        system="Linux",
        python="CPython",
        commit="abc",
    )
    rows = [
        Row(client="aioidem", rounds=ran(1000, 4000, 2000)),
        Row(client="aiokafka", rounds=ran(500)),
        Row(client="Java", cannot="a record cannot be awaited in a task"),
        Row(client="kafka-python", failed="Error: a | b"),
    ]
    table = Table(scenario=scenario("await+100tasks"), rows=rows)
    links = Table(scenario=scenario("long-link+100ms"))
    links.links = [
        {"client": "aioidem", "version": "1", "in_flight": 5, "steady_records_per_sec": 792.0},
        {"client": "Java", "version": "4", "in_flight": 5, "steady_records_per_sec": None},
    ]
    return Report(
        machine=machine,
        broker="a broker",
        command="python x",
        rounds=3,
        seconds=1.0,
        tables=[table, links],
    )


@pytest.mark.usefixtures("scripts")
def test_a_table_has_medians_their_spread_and_every_client() -> None:
    """A row shows the median, lowest and highest figure, or why its client has no figures."""
    from short_link_report import markdown

    printed = markdown(reported())
    assert "### await+100tasks: 100 tasks, 100 B, no keys, 4 partitions" in printed
    lines = [line for line in printed if line.startswith(("| aio", "| Java", "| kafka"))]
    assert "2,000 (1,000 to 4,000) | 500.00 (250.00 to 1,000.00)" in lines[0]
    assert "0.25 x the rate, 4.00 x the CPU" in lines[1]
    assert "cannot: a record cannot be awaited in a task" in lines[2]
    assert "FAILED: Error: a / b" in lines[3]
    assert lines[4:] == ["| aioidem 1 | 5 | 792.0 | 99.0 % |", "| Java 4 | 5 | - | - |"]
    assert len({line.count("|") for line in lines[:4]}) == 1


@pytest.mark.usefixtures("scripts")
def test_a_busy_machine_is_in_the_table() -> None:
    """The report of a run on a busy machine says that its figures are not to be quoted."""
    from dataclasses import replace

    from short_link_report import markdown

    report = reported()
    assert "Not to be quoted" not in "\n".join(markdown(report))
    report.machine = replace(report.machine, load=1.5)
    assert "Not to be quoted: the machine is not quiet" in "\n".join(markdown(report))


@pytest.mark.usefixtures("scripts")
def test_a_report_is_read_back_and_put_into_a_document(tmp_path: Path) -> None:
    """A report that is read back from JSON gives the same tables and the same picture."""
    from short_link_report import BEGIN, END, Report, into_document, markdown

    report = reported()
    again = Report.read(json.loads(json.dumps(report.state())))
    assert markdown(again) == markdown(report)
    page = tmp_path / "benchmarks.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    into_document(again, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| aiokafka 1.0 |" in text
    first = (tmp_path / "benchmarks.svg").read_bytes()
    into_document(report, page)
    assert page.read_text() == text
    assert (tmp_path / "benchmarks.svg").read_bytes() == first
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has no lines"):
        into_document(report, page)


@pytest.mark.usefixtures("scripts")
def test_only_the_measured_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements before the measurement and after its end do not count."""
    import short_link_clients

    now = [100.0]
    monkeypatch.setattr("short_link_clients.time.perf_counter", lambda: now[0])
    load = short_link_clients.Load(warm_up=1.0, seconds=2.0, limit=10)
    for at, acked, over in ((100.5, 7, False), (101.0, 10, False), (102.0, 30, False)):
        now[0], load.acked = at, acked
        assert load.over() is over
    now[0], load.acked = 103.0, 50
    assert load.over()
    now[0], load.acked = 109.0, 900
    assert load.over()
    count, seconds, _ = load.result()
    assert (count, seconds) == (40, 2.0)


@pytest.mark.usefixtures("scripts")
def test_a_latency_counts_from_the_time_at_which_a_record_was_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record that a stalled client kept waiting is charged with the time of the stall."""
    from array import array

    import short_link_clients

    now = [0.0]
    monkeypatch.setattr("short_link_clients.time.perf_counter", lambda: now[0])
    load = short_link_clients.Load(warm_up=0.0, seconds=1.0, limit=10)
    now[0] = 0.5
    for due in (-0.001, 0.0, 0.25, 0.5):
        load.timed(due, None)
    assert load.latencies == array("d", [0.5, 0.25, 0.0])
    found = short_link_clients.percentiles(load.latencies)
    assert found is not None
    assert found["p50"] == pytest.approx(250, rel=0.001)
    assert found["max"] == pytest.approx(500, rel=0.001)
