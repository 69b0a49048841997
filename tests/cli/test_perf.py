"""`aioidem perf` as a whole, on the embedded cluster and with producers that fail or hang."""

# ruff: noqa: ARG002 (test doubles keep the parameters of what they replace)

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import anyio
import pytest

from aioidem._cli import main
from aioidem._load.measure import RunResult
from aioidem._load.perf import (
    Interrupt,
    PerfOutcome,
    Target,
    perform,
    run_once,
)
from aioidem._load.plan import PerfPlan, plan_perf
from aioidem._producer.metrics import (
    ConnectionStatistics,
    LatencyStatistics,
    PartitionStatistics,
    ProducerStatistics,
)
from aioidem.errors import KafkaConnectionError
from aioidem.structs import DeliveryStatus, RecordMetadata
from tests.commands import AIOIDEM, FULL_DISK, told_on_a_full_disk

Captured = pytest.CaptureFixture[str]


class SilentScreen:
    """A stand-in for the command's terminal output, which keeps what it would show."""

    interval = 0.01

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.updates = 0

    def begin(self, name: str, total: float | None) -> None:
        self.told.append(("begin", f"{name} {total}"))

    def update(self, name: str, progress: object, done: float) -> None:
        self.updates += 1

    def end(self, name: str, result: RunResult) -> None:
        self.told.append(("end", name))

    def note(self, line: str) -> None:
        self.told.append(("note", line))

    def trouble(self, line: str) -> None:
        self.told.append(("trouble", line))

    def table(self, results: Sequence[RunResult]) -> None:
        self.told.append(("table", str(len(results))))

    def lines(self, kind: str) -> list[str]:
        return [line for told, line in self.told if told == kind]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        pass


# --- one run, with a stand-in for the producer ----------------------------------------------------


def statistics(topic: str = "t", window: int = 7, max_span: int = 6) -> ProducerStatistics:
    partition = PartitionStatistics(
        topic=topic, partition=0, window=window, span=0, max_span=max_span, in_flight=0, in_doubt=0,
        pending_records=0, leader=0, leader_epoch=0, producer_epoch=0, next_sequence=0,
        acked_offset=0, window_reason="",
    )  # fmt: skip
    connection = ConnectionStatistics(
        node_id=0, host="h", port=1, connected=True, in_flight=0, rtt=0.125, produce_version=13,
        throttled_until=0.0, window_discovery="answers in v14",
    )  # fmt: skip
    none = LatencyStatistics(average=None, p50=None, p95=None, p99=None, p999=None, largest=None)
    return ProducerStatistics(
        producer_id=1, producer_epoch=0, records_queued=0, records_acked=0, records_not_written=0,
        records_unknown=0, bytes_acked=0, batches_sent=0, batches_retried=0, batches_split=0,
        epoch_bumps=0, data_loss_events=0, buffer_bytes_used=0, buffer_waiters=0,
        records_sent_per_second=0.0, bytes_sent_per_second=0.0, errors_per_second=0.0,
        delivery_latency=none, request_latency=none,
        partitions=(partition,), connections=(connection,),
    )  # fmt: skip


class Delivered:
    status = DeliveryStatus.ACKED

    @property
    def metadata(self) -> RecordMetadata:
        raise NotImplementedError("a run without a journal does not ask where a record is")

    def exception(self) -> None:
        return None

    def add_done_callback(self, callback: Callable[..., object], /) -> None:
        callback(self)


class Obedient:
    """A producer that acknowledges at once; a test can make each of its steps fail or hang."""

    def __init__(self, fail: str = "", hang: str = "") -> None:
        self.fail = fail
        self.hang = hang
        self.closed_with: list[float | None] = []

    async def _step(self, name: str) -> None:
        await anyio.lowlevel.checkpoint()
        if name == self.hang:
            await anyio.sleep_forever()
        if name == self.fail:
            raise KafkaConnectionError(f"{name} failed")

    async def start(self) -> None:
        await self._step("start")

    async def partitions_for(self, topic: str) -> set[int]:
        await self._step("partitions_for")
        return {0}

    def send_nowait(self, topic: str, value: bytes, *, timestamp: float | None = None) -> Delivered:
        if self.fail == "send":
            raise KafkaConnectionError("send failed")
        return Delivered()

    async def wait_for_room(self) -> None:
        await self._step("wait_for_room")

    async def flush(self, timeout: float | None = None) -> None:
        await self._step("flush")

    async def begin_transaction(self) -> None:
        await self._step("begin_transaction")

    async def commit_transaction(self, timeout: float | None = None) -> None:
        await self._step("commit_transaction")

    async def close(self, timeout: float | None = None) -> None:
        self.closed_with.append(timeout)
        await self._step("close")

    def statistics(self) -> ProducerStatistics:
        return statistics()


REMOTE = Target("h:1", ("t",))


async def one_run(
    producer: Obedient,
    *,
    target: Target = REMOTE,
    interrupt: Interrupt | None = None,
    screen: SilentScreen | None = None,
    **flags: Any,
) -> RunResult:
    plan = plan_perf(bootstrap_server="h:1", topic="t", num_records=10, **flags)
    with anyio.fail_after(20):
        return await run_once(
            plan,
            target,
            "t",
            3,
            screen or SilentScreen(),
            interrupt or Interrupt(),
            make_producer=lambda _config, _connector: producer,
        )


@pytest.mark.anyio
async def test_a_run_reports_the_producer_s_window_span_and_round_trip() -> None:
    producer = Obedient()
    result = await one_run(producer)
    assert result.complete
    assert (result.label.in_flight, result.window, result.max_span) == (3, 7, 6)
    assert result.rtt_ms == 125.0
    assert producer.closed_with == [None]


@pytest.mark.anyio
async def test_the_broker_s_own_count_of_the_span_is_preferred() -> None:
    """A run reports the broker's count of the span, if there is one, and not the producer's."""
    target = Target("h:1", ("t",), rtt_ms=150.0, max_span=lambda topic: {"t": 20}[topic])
    result = await one_run(Obedient(), target=target)
    assert (result.max_span, result.rtt_ms) == (20, 150.0)


@pytest.mark.anyio
@pytest.mark.parametrize("step", ["start", "partitions_for", "send", "flush", "close"])
async def test_a_failing_step_is_a_row_that_failed_and_closes_within_bounds(step: str) -> None:
    """If a step of a run fails, the run's result says so, and `close` is called with a timeout."""
    producer, screen = Obedient(fail=step), SilentScreen()
    result = await one_run(producer, screen=screen)
    assert not result.complete
    assert result.failure == f"KafkaConnectionError: {step} failed"
    assert len(producer.closed_with) == 1
    if step != "close":
        assert producer.closed_with[0] is not None
    [line] = screen.lines("trouble")
    assert f"{step} failed" in line
    assert line.startswith("aioidem perf: 3 in flight: ")


@pytest.mark.anyio
@pytest.mark.parametrize("step", ["begin_transaction", "commit_transaction"])
async def test_a_failing_transaction_is_a_row_that_failed(step: str) -> None:
    """If a transaction fails, the result of the run says so."""
    result = await one_run(Obedient(fail=step), transactional_id="x")
    assert not result.complete
    assert result.failure == f"KafkaConnectionError: {step} failed"


@pytest.mark.anyio
@pytest.mark.parametrize("step", ["start", "partitions_for", "flush"])
async def test_a_signal_ends_a_step_that_hangs_and_keeps_the_row(step: str) -> None:
    """A signal ends a step that hangs, and the run's result counts the records until then."""
    producer, interrupt = Obedient(hang=step), Interrupt()
    rows: list[RunResult] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_deliver_when_waiting, interrupt)
        rows.append(await one_run(producer, interrupt=interrupt))
    assert interrupt.number == signal.SIGINT
    assert [timeout is not None for timeout in producer.closed_with] == [True]
    assert [row.records for row in rows] == [10 if step == "flush" else 0]


@pytest.mark.anyio
async def test_a_second_signal_ends_a_close_that_hangs() -> None:
    """A second signal ends a run whose `close` hangs."""
    producer, interrupt = Obedient(hang="close"), Interrupt()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_deliver_when_waiting, interrupt, 2)
        with interrupt.everything:
            await one_run(producer, interrupt=interrupt)
    assert interrupt.everything.cancelled_caught


async def _deliver_when_waiting(interrupt: Interrupt, times: int = 1) -> None:
    await anyio.wait_all_tasks_blocked()
    for _ in range(times):
        interrupt.deliver(signal.SIGINT)


@pytest.mark.anyio
async def test_after_a_signal_no_further_run_starts() -> None:
    interrupt = Interrupt()
    interrupt.deliver(signal.SIGTERM)
    producer = Obedient(hang="start")
    result = await one_run(producer, interrupt=interrupt)
    assert result.records == 0


@pytest.mark.anyio
async def test_the_metrics_are_printed_when_asked_for() -> None:
    screen = SilentScreen()
    await one_run(Obedient(), screen=screen, print_metrics=True)
    assert any(line.split() == ["partitions[0].window", "7"] for line in screen.lines("note"))
    screen = SilentScreen()
    await one_run(Obedient(), screen=screen)
    assert screen.lines("note") == []


# --- the status -----------------------------------------------------------------------------------


def test_the_status_is_0_only_when_every_record_of_every_run_was_acknowledged() -> None:
    complete = anyio.run(one_run, Obedient())
    failed = anyio.run(lambda: one_run(Obedient(fail="flush")))
    assert PerfOutcome((complete, complete)).exit_status == 0
    assert PerfOutcome((complete, failed)).exit_status == 1
    assert PerfOutcome(()).exit_status == 1
    assert PerfOutcome((complete,), signal.SIGINT).exit_status == 130
    assert PerfOutcome((complete,), signal.SIGTERM).exit_status == 143


# --- on the embedded cluster ----------------------------------------------------------------------


def embedded(**flags: Any) -> PerfPlan:
    return plan_perf(**{"num_records": 300, "record_size": 1000, **flags})


@pytest.mark.anyio
async def test_every_record_is_acknowledged_on_the_embedded_cluster() -> None:
    screen = SilentScreen()
    with anyio.fail_after(30):
        outcome = await perform(embedded(in_flight="1,5", rtt_ms=5), screen)
    assert outcome.exit_status == 0
    assert [row.acked for row in outcome.results] == [300, 300]
    assert [row.label.in_flight for row in outcome.results] == [1, 5]
    assert screen.lines("trouble") == []
    assert len(screen.lines("end")) == 2
    spans = [row.max_span or 0 for row in outcome.results]
    assert spans[0] == 1
    assert 1 <= spans[1] <= 5


@pytest.mark.anyio
async def test_several_brokers_partitions_and_a_codec_work() -> None:
    plan = embedded(brokers=3, partitions=6, producer_props=["compression.type=lz4"])
    with anyio.fail_after(30):
        outcome = await perform(plan, SilentScreen())
    assert outcome.exit_status == 0


@pytest.mark.anyio
async def test_a_cluster_that_is_not_there_is_one_failed_row_and_ends_the_list() -> None:
    """If no broker can be reached, the first run sends no record and no further run starts."""
    with socket.socket() as held:  # connections to a port that is only bound are refused
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        plan = plan_perf(
            bootstrap_server=address,
            topic="t",
            num_records=5,
            in_flight="1,5",
            producer_props=["max.block.ms=500"],
        )
        screen = SilentScreen()
        with anyio.fail_after(30):
            outcome = await perform(plan, screen)
    assert outcome.exit_status == 1
    assert [row.records for row in outcome.results] == [0]
    [line] = screen.lines("trouble")
    assert "no record was sent" in line


def test_records_that_are_not_acknowledged_make_the_status_1(
    capsys: Captured, tmp_path: Path
) -> None:
    """With acks=0 no record is acknowledged, so the exit status is 1."""
    path = tmp_path / "out.json"
    words = "perf --num-records 20 --producer-props acks=0 enable.idempotence=false --json"
    assert main([*words.split(), str(path)]) == 1
    [entry] = json.loads(path.read_text())
    assert (entry["records"], entry["acked"], entry["unknown"]) == (20, 0, 20)
    assert "20 unknown" in capsys.readouterr().err


def test_a_file_of_tls_that_is_not_there_is_bad_usage(capsys: Captured) -> None:
    words = "perf --bootstrap-server h:1 --topic t --num-records 1 --producer-props"
    props = ["security.protocol=SSL", "ssl.truststore.location=/nowhere.pem"]
    assert main([*words.split(), *props]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("aioidem perf: ssl_truststore_location='/nowhere.pem' cannot be loaded")


def test_the_files_and_the_lines_of_a_run_agree(capsys: Captured, tmp_path: Path) -> None:
    """The JSON file of two runs agrees with the lines that the command prints."""
    path = tmp_path / "out.json"
    words = "perf --rtt 20 --retain 20 --in-flight 1,20 --num-records 400 --print-metrics --json"
    assert main([*words.split(), str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    rows = json.loads(path.read_text())
    assert [row["in_flight"] for row in rows] == [1, 20]
    assert [row["rtt_ms"] for row in rows] == [20.0, 20.0]
    assert "1 in flight: 400 of 400 records acknowledged" in captured.out
    assert "speed-up" in captured.out
    assert "producer_epoch" in captured.out


def test_records_are_sent_in_transactions(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    words = "perf --in-flight 1,5 --num-records 300 --throughput 1500 --transactional-id x"
    assert main([*words.split(), "--transaction-duration-ms", "50", "--json", str(path)]) == 0
    entries = json.loads(path.read_text())
    assert [entry["committed"]["records"] for entry in entries] == [300, 300]
    assert all(entry["committed"]["transactions"] > 1 for entry in entries)
    captured = capsys.readouterr()
    assert "300 committed in" in captured.out + captured.err
    assert "commit ms" in captured.out


def test_a_payload_file_is_sent(capsys: Captured, tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(b"aaaa\nbb\n")
    path = tmp_path / "out.json"
    words = ["perf", "--num-records", "10", "--payload-file", str(payload), "--json", str(path)]
    assert main(words) == 0
    assert json.loads(path.read_text())[0]["record_size"] == 3
    assert capsys.readouterr().err == ""


# --- as a process ---------------------------------------------------------------------------------


def test_the_steady_state_is_a_line_of_its_own(capsys: Captured, tmp_path: Path) -> None:
    """As with kafka-producer-perf-test, --warmup-records adds a summary and takes nothing away."""
    path = tmp_path / "out.json"
    words = "perf --num-records 300 --warmup-records 100 --payload-monotonic --json"
    assert main([*words.split(), str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("5 in flight: 300 of 300 records acknowledged") for line in lines)
    [line] = [line for line in lines if "steady state" in line]
    assert line.startswith("5 in flight: after 100 warm-up records, 200 steady state records ack")
    [row] = json.loads(path.read_text())
    assert (row["records"], row["after_warmup"]["records"], row["record_size"]) == (300, 200, 3)


def test_a_run_that_ends_in_its_warm_up_says_so(capsys: Captured) -> None:
    assert main(["perf", "--duration", "0.2", "--warmup-records", f"{10**12}"]) == 0
    assert "no steady state: the run sent " in capsys.readouterr().out


def start(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [*AIOIDEM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_soon_with_the_rows_so_far(
    tmp_path: Path, number: int, status: int
) -> None:
    """After a signal, the command ends early and writes the results of the runs until then."""
    path = tmp_path / "out.json"
    words = "perf --duration 60 --in-flight 1,5 --rtt 100 --producer-props late.sealing=false"
    with start(*words.split(), "--json", str(path)) as process:
        assert "records acknowledged" in first_line(process)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)  # half the time of one whole run
    assert process.returncode == status
    assert "Traceback" not in err
    rows = json.loads(path.read_text())
    assert [row["in_flight"] for row in rows] == [1]
    assert rows[0]["acked"] > 0
    assert "speed-up" in out


def test_a_reader_that_goes_away_does_no_harm(tmp_path: Path) -> None:
    """The command ends without a traceback if the reader of its output closes the pipe."""
    path = tmp_path / "out.json"
    # One small batch in flight is enough, because the rate does not matter.
    words = "perf --duration 2.5 --in-flight 1 --rtt 100 --producer-props late.sealing=false"
    with start(*words.split(), "--json", str(path)) as process:
        first_line(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(timeout=30)
    assert "Traceback" not in err
    assert json.loads(path.read_text())[0]["acked"] > 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_standard_stream_that_is_closed_does_no_harm(tmp_path: Path, closed: str) -> None:
    """A run without a standard stream, as under some schedulers, is a run like any other."""
    path = tmp_path / "out.json"
    words = [*AIOIDEM, "perf", "--num-records", "5", "--json", str(path)]
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(path.read_text())[0]["acked"] == 5


@pytest.mark.skipif(not FULL_DISK.exists(), reason="/dev/full is Linux's")
def test_a_full_disk_takes_the_lines_of_a_run_and_not_the_run(tmp_path: Path) -> None:
    """If the output cannot be written, one line says so, and the run's file has all of it."""
    path = tmp_path / "out.json"
    words = "perf --num-records 30 --throughput 200 --reporting-interval 20"
    told = 0, "aioidem: standard output: No space left on device\n"
    assert told_on_a_full_disk(*words.split(), "--json", str(path)) == told
    assert json.loads(path.read_text())[0]["acked"] == 30


@pytest.mark.skipif(not FULL_DISK.exists(), reason="/dev/full is Linux's")
def test_a_command_whose_output_cannot_be_written_ends_with_a_line() -> None:
    words = "doctor --bootstrap-server 127.0.0.1:1 --timeout 1"
    told = 1, "aioidem doctor: [Errno 28] No space left on device\n"
    assert told_on_a_full_disk(*words.split()) == told
