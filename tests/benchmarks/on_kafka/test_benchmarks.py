"""Short runs of every benchmark succeed, and the benchmarks' own checks find planted faults.

The figures are not checked, because that would take a quiet machine. But the tests check that each
client in a benchmark's rows did run. A client that is not installed (Java's needs a JDK) is skipped
with the reason, and fails the test on CI.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioidem._testing.kafka_dump import DumpedBatch, DumpedRecord
from aioidem.testing import FrameHook, FrameSeen, Inspect
from tests.ci import CI

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"
CLIENTS = {"aioidem", "aiokafka", "confluent-kafka", "kafka-python", "Java"}
MISSING = ("needs a JDK", "ModuleNotFoundError", "PackageNotFoundError")
UNREACHED = ("no answer", "large record", "sequence numbers", "too few", "never answered")


def run(script: str, *flags: str, timeout: float = 280) -> str:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, *flags],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        # Test the checkout, even if another aioidem is installed.
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def rows_of_faults(where: Path, faults: Sequence[str], *flags: str) -> list[dict[str, Any]]:
    """Run `faults.py` with these faults; return a row for each fault and installed client."""
    found = where / "rows.json"
    run("faults.py", "--faults", *faults, *flags, "--deadline", "60", "--json", str(found))
    rows: list[dict[str, Any]] = json.loads(found.read_text())
    assert sorted((row["fault"], row["client"]) for row in rows) == sorted(
        (fault, client) for fault in faults for client in CLIENTS
    )
    missing = {
        row["client"]: row["note"]
        for row in rows
        if not row["sent"] and any(each in row["note"] for each in MISSING)
    }
    assert "aioidem" not in missing
    assert not (missing and CI), missing
    return [row for row in rows if row["client"] not in missing]


def really_ran(rows: Sequence[dict[str, Any]]) -> None:
    """Assert that each row's client sent records and got acks, and that the fault reached it."""
    for row in rows:
        if (row["fault"], row["client"]) == ("wrap", "confluent-kafka"):
            assert (row["sent"], row["note"]) == (0, "not reachable")
            continue
        assert row["sent"] > 0, row
        assert row["acked"] > 0, row
        assert not [each for each in UNREACHED if each in row["note"]], row
    missing = CLIENTS - {row["client"] for row in rows}
    if missing:
        pytest.skip(f"all is well, but without {', '.join(sorted(missing))}")


@pytest.mark.parametrize(
    "script", ["long_link.py", "short_link.py", "faults.py", "clients.py", "transactions.py"]
)
def test_help_is_there(script: str) -> None:
    assert "usage:" in run(script, "--help")


@pytest.mark.slow
def test_long_link(tmp_path: Path) -> None:
    """The benchmark has a row for each client, and aioidem's span reaches its window, 5 or 20.

    The span is the number of batches from the oldest unanswered one to the newest.
    """
    found = tmp_path / "rows.json"
    printed = run(
        "long_link.py",
        *("--kafka", "--all", "--late-sealing", "--rtt", "40", "--in-flight", "5,20"),
        *("--duration", "1", "--markdown", "--json", str(found)),
    )
    rows = {(row["client"], row["in_flight"]): row for row in json.loads(found.read_text())}
    late = "aioidem, sealing late"
    others = {("aiokafka", 1), ("aiokafka-defaults", 1), ("confluent-kafka", 5)}
    others |= {("kafka-python", 5), ("Java", 5)}
    without = set() if CI else others - rows.keys()
    assert rows.keys() | without == others | {
        ("aioidem", 5),
        ("aioidem", 20),
        (late, 5),
        (late, 20),
    }
    spans = {row: each["max_span"] for row, each in rows.items()}
    assert (spans["aioidem", 5], spans["aioidem", 20]) == (5, 20)
    assert (spans["aiokafka", 1], spans["aiokafka-defaults", 1]) == (1, 1)
    assert spans[late, 5] <= 5
    assert spans[late, 20] <= 20
    assert all(row["acked"] == row["records"] > 0 for row in rows.values())
    assert (rows["aioidem", 5]["window"], rows["aioidem", 20]["window"]) == (5, 20)
    if without:
        pytest.skip(f"all is well, but without {', '.join(sorted(each for each, _ in without))}")
    assert sorted(map(_client, table_in(printed))) == sorted(map(_client, readme_table()))


def readme_table() -> list[str]:
    return table_in((ROOT / "README.md").read_text())


def table_in(text: str) -> list[str]:
    lines = text.splitlines()
    begin = next(at for at, line in enumerate(lines) if "| against aiokafka |" in line)
    return lines[begin : begin + 10]


def _client(line: str) -> str:
    """Return the client of a row, without its version."""
    return re.sub(r" \d+(\.\d+)+", "", line.split("|")[1].strip())


def test_readmes_table_is_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark prints exactly README's table if it is given the rates in that table.

    The last column (ratios) is not compared, because rounded rates do not give the same ratios.
    """
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from long_link import LATE, BurstTally, markdown, ratio_lines

    from aioidem._load.measure import RunLabel

    table = readme_table()
    clients = {
        "aiokafka": ("aiokafka", 1),
        "defaults (not": ("aiokafka-defaults", 1),
        "kafka-python": ("kafka-python", 5),
        "confluent-kafka": ("confluent-kafka", 5),
        "window 5 (": ("aioidem", 5),
        "window 20": ("aioidem", 20),
        "Java": ("Java", 5),
        "its defaults: ": (LATE, 5),
    }
    results = []
    for line in table[2:]:
        _, name, flight, rate, _, _ = (cell.strip() for cell in line.split("|"))
        client, in_flight = [found for part, found in clients.items() if part in name][-1]
        [number] = re.findall(r"[0-9.]+", name.partition(",")[0]) or ["0"]
        version = number if client == "Java" else f"{number}.7"
        label = RunLabel(client=client, version=version, in_flight=in_flight, record_size=1000)
        result = BurstTally(0.0, 1.0, 0.1).result(label, max_span=int(flight.split()[0]))
        results.append(replace(result, steady_records_per_sec=float(rate.replace(",", ""))))
    [ours, *_] = [each for each in results if each.label.client == "aioidem"]
    more = [replace(ours, label=replace(ours.label, in_flight=each)) for each in (1, 2)]
    lines = markdown([*more, *reversed(results)])
    ratio = re.compile(r"[0-9,]+\.[0-9] x \|$")
    assert all(map(ratio.search, lines[3:11]))
    assert [ratio.sub("", line) for line in lines[1:11]] == [ratio.sub("", each) for each in table]
    [against] = [line for line in ratio_lines(results) if line.startswith("aioidem, 5 in flight: ")]
    assert {word.split(" x ")[1] for word in against.split(": ")[1].split(", ")} == {
        *("aiokafka", "aiokafka-defaults", "kafka-python", "confluent-kafka", "Java")
    }
    # Rows that README does not have are printed in a second table.
    assert lines[11:14] == ["", *table[:2]]
    assert sorted(map(_client, lines[14:])) == ["aioidem, window 1", "aioidem, window 2"]


@pytest.mark.parametrize(
    ("window", "gap", "left"),
    [(1, 0.0, 0), (5, 0.0, 0), (5, 0.0, 3), (5, 0.002, 3), (20, 0.0075, 7)],
)
def test_a_rate_is_that_of_whole_windows(
    monkeypatch: pytest.MonkeyPatch, window: int, gap: float, left: int
) -> None:
    """The measured rate is one window of batches per round trip, however the answers are spread.

    The answers to a window come at once or one by one, and sending may end within a window.
    """
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from long_link import BurstTally

    tally = BurstTally(100.0, duration=10.0, rtt=0.15)

    def answered(trips: int, batches: int) -> None:
        for batch in range(batches):
            for _ in range(16):
                tally.queued()
                tally.acknowledged(1000, 0.0, 100.0 + 0.15 * trips + gap * batch)

    for trips in range(1, 67):
        answered(trips, window)
        if trips == 1:
            assert tally.steady is None
    # After sending has ended, queued records take some more round trips.
    answered(67, window)
    answered(68, left)
    answered(69, 1)
    assert tally.steady == pytest.approx(16 * window / 0.15, rel=0.002)


@pytest.mark.slow
def test_short_link(tmp_path: Path) -> None:
    """On a real broker each client of the short link runs, or says what it cannot do."""
    found = tmp_path / "rows.json"
    run(
        "short_link.py",
        *("--busy", "--rounds", "1", "--seconds", "0.5", "--warm-up", "0.2"),
        *("--scenarios", "queue", "await+100tasks", "paced", "--rate", "500"),
        *("--clients", "aioidem", "aiokafka-pure", "confluent-kafka", "kafka-python", "Java"),
        *("--json", str(found)),
    )
    without: set[str] = set()
    for table in json.loads(found.read_text())["tables"]:
        for row in table["rows"]:
            blocks = table["scenario"]["way"] == "await" and "aio" not in row["client"]
            missing = any(each in row["cannot"] for each in ("not installed", "needs"))
            if missing and not CI:
                without.add(row["client"])
            elif blocks:
                assert "cannot be awaited" in row["cannot"], row
            else:
                [figures] = row["rounds"]
                assert figures["records_per_sec"] > 0
                assert figures["cpu_us_per_record"] > 0
    if without:
        pytest.skip(f"all is well, but without {', '.join(sorted(without))}")


@pytest.mark.slow
def test_transactions(tmp_path: Path) -> None:
    """The benchmark runs Java only with 5 batches in flight, and aioidem also with 10."""
    found = tmp_path / "rows.json"
    run(
        "transactions.py",
        *("--rounds", "1", "--records", "2000", "--warm-up", "200", "--in-flight", "5,10"),
        *("--clients", "Java", "aioidem", "--json", str(found)),
    )
    rows = json.loads(found.read_text())
    told = [(row["client"], row["in_flight"]) for row in rows]
    assert told == [("Java", 5), ("aioidem", 5), ("aioidem", 10)]
    assert all(row["records_per_sec"] > 0 and row["megabytes_per_sec"] > 0 for row in rows)


@pytest.mark.slow
def test_faults_of_connections_and_brokers(tmp_path: Path) -> None:
    """With each fault, aioidem's records are all acknowledged, and stored once and in order."""
    faults = ("lost-response", "clean-restart", "broker-down")
    rows = rows_of_faults(tmp_path, faults, "--seconds", "1", "--down", "3")
    assert all(row["acked"] == row["sent"] for row in rows if row["client"] == "aioidem")
    really_ran(rows)


@pytest.mark.slow
def test_faults_of_records(tmp_path: Path) -> None:
    """Each client meets both faults of records: one that is too large, sequences that pass 2^31."""
    rows = rows_of_faults(tmp_path, ("oversized", "wrap"), "--seconds", "2", "--rate", "100")
    ours = {row["fault"]: row for row in rows if row["client"] == "aioidem"}
    assert (ours["oversized"]["not_written"], ours["oversized"]["unknown"]) == (1, 0)
    assert ours["wrap"]["acked"] == ours["wrap"]["sent"]
    really_ran(rows)


class Wire:
    """A stand-in for a cluster and its proxy, on which the benchmark carries out its faults.

    A fault calls `until`, `move_leader` or `terminate`. During each of these calls, the hook
    ``on_answer`` sees one Produce answer (NOT_LEADER_OR_FOLLOWER) to each client in ``clients``.
    """

    def __init__(self, *clients: str) -> None:
        self.on_answer: FrameHook | None = None
        self.proxy = self
        self.proxies = self.brokers = [self]
        self._clients = clients

    async def until(self, condition: Callable[[], bool]) -> None:
        self._answer()
        if not condition():
            await anyio.sleep_forever()

    async def leader(self, _topic: str) -> int:
        return 0

    async def move_leader(self, _topic: str, _partition: int, _broker: int) -> None:
        self._answer()

    async def terminate(self) -> None:
        self._answer()

    async def start(self) -> None: ...

    def _answer(self) -> None:
        assert self.on_answer is not None
        for client in self._clients:
            action = self.on_answer(FrameSeen(1, True, 0, 12, 1, client, len(REFUSED), 0.0))
            if isinstance(action, Inspect):
                action.decide(REFUSED)


def _refused() -> bytes:
    """Build a Produce answer that refuses one partition with NOT_LEADER_OR_FOLLOWER."""
    part = struct.pack(">ihqqqBBB", 0, 6, -1, -1, -1, 1, 0, 0)
    return struct.pack(">iBBB", 1, 0, 2, 2) + b"t" + b"\2" + part + b"\0" + struct.pack(">iB", 0, 0)


REFUSED = _refused()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fault", "reached", "unreached"),
    [
        ("lost-response", "", "no answer was lost"),
        ("clean-restart", "", "no answer was held back"),
        ("leader-move", "4 x NOT_LEADER", "never answered NOT_LEADER"),
    ],
)
async def test_a_row_says_if_its_fault_did_not_happen(
    monkeypatch: pytest.MonkeyPatch, fault: str, reached: str, unreached: str
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from faults import FAULTS, Stage, judge, table

    workers: Any = {each: worker_without_records() for each in ("met", "spared")}
    wire: Any = Wire("met")
    stage = Stage(wire, workers, 0.0, patience=0.01, pause=0.0)
    [act] = [each.act for each in FAULTS if each.name == fault]
    await act(stage)
    for client, note in (("met", reached), ("spared", unreached)):
        verdict = judge(fault, client, workers[client], [], 30.0, stage.notes(client))
        assert verdict.note == note
        assert f" {note} |" in table([replace(verdict, sent=1)])[-1]


@pytest.mark.parametrize(
    ("fault", "sent", "sequence", "logged", "note"),
    [
        ("oversized", 100, 0, 99, None),
        ("oversized", 99, 0, 99, "the large record was not sent"),
        ("oversized", 100, 0, 100, "the topic took the large record"),
        ("wrap", 101, 2**31 - 100, 1, None),
        ("wrap", 100, 2**31 - 100, 1, "too few records for the numbers to wrap"),
        ("wrap", 101, 0, 1, "sequence numbers began at 0"),
        ("wrap", 101, 0, 0, "sequence numbers began at None"),
    ],
)
def test_a_row_says_if_its_records_were_no_fault(
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    sent: int,
    sequence: int,
    logged: int,
    note: str | None,
) -> None:
    """A row's note names the fault (a large record, wrapping sequences) that never happened."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from faults import FAULTS, unreached
    from workers import Sent

    worker = worker_without_records()
    worker.records = {number: Sent(at=0.0) for number in range(1, sent + 1)}
    record = DumpedRecord(0, None, f"{logged:08d}", ())
    batch = DumpedBatch(0, 0, 1, sequence, 1, 0, "none", control=False, records=(record,))
    [asked] = [each for each in FAULTS if each.name == fault]
    assert unreached(asked, worker, [batch] if logged else []) == ([note] if note else [])


def worker_without_records() -> Any:
    from workers import Worker

    nobody: Any = None  # the worker's process is never started, so it needs no `ProcessGuard`
    return Worker([], nobody)


def test_the_judge_of_faults_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """`judge`, which compares a client's reports with the log, finds each planted anomaly."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from faults import judge
    from workers import Sent

    worker = worker_without_records()
    worker.records = {
        1: Sent(at=0.0, ended=1.0, outcome="acked", offset=0),
        2: Sent(at=0.0, ended=1.0, outcome="acked", offset=-1),
        3: Sent(at=0.0, ended=1.0, outcome="acked", offset=9),
        4: Sent(at=0.0, ended=1.0, outcome="not-written", reason="refused"),
        5: Sent(at=0.0, ended=1.0, outcome="unknown", reason="late"),
        6: Sent(at=0.0),
    }
    verdict = judge("fault", "client", worker, [1, 4, 3, 5, 5], deadline=30.0)
    assert (verdict.acked, verdict.not_written, verdict.unknown) == (3, 1, 1)
    assert (verdict.lost, verdict.duplicated, verdict.reordered, verdict.hung) == (1, 1, 1, 1)
    assert "1 said to be not written are in the log" in verdict.note
    assert "1 acknowledged at another record's offset" in verdict.note
    assert not verdict.clean
