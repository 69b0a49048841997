"""The flags of `aioidem perf` make a plan, or a usage error of one line."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._engine.memory import COPIES_SHARE
from aioidem._engine.record import RECORD_MEMORY
from aioidem._load import plan as plans
from aioidem._load.plan import PerfPlan, parse_in_flight, plan_perf
from aioidem._load.properties import parse_properties, spread_values
from aioidem._load.usage import UsageError
from aioidem._records import build_batch, record_size_bound

REMOTE: dict[str, Any] = {"bootstrap_server": "h:9092", "topic": "t", "num_records": 1}


def refused(**flags: Any) -> str:
    with pytest.raises(UsageError) as caught:
        plan_perf(**flags)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- several values after one flag ----------------------------------------------------------------


def test_several_values_after_one_flag_are_the_flag_repeated() -> None:
    """`--producer-props a b` means the same as `--producer-props a --producer-props b`."""
    words = ["perf", "--producer-props", "a=1", "b=2", "--topic", "t"]
    expected = ["perf", "--producer-props", "a=1", "--producer-props", "b=2", "--topic", "t"]
    assert spread_values(words) == expected


def test_a_repeated_flag_stays_as_it_is() -> None:
    words = ["--producer-props", "a=1", "--producer-props", "b=2"]
    assert spread_values(words) == words


def test_a_flag_without_values_is_left_for_the_parser_to_refuse() -> None:
    """`--producer-props` without values is left unchanged, so that the parser refuses it."""
    words = ["--producer-props", "--topic", "t"]
    assert spread_values(words) == words
    assert spread_values(["--producer-props"]) == ["--producer-props"]


def test_nothing_is_spread_after_the_end_of_options() -> None:
    """Words after `--` are left unchanged."""
    words = ["--", "--producer-props", "a=1", "b=2"]
    assert spread_values(words) == words


@given(st.lists(st.sampled_from(["--producer-props", "a=1", "b", "--x", "-1", "--", "--x=--y"])))
def test_spreading_loses_and_invents_no_other_word(words: list[str]) -> None:
    """Repeating `--producer-props` neither removes nor adds any other word."""

    def others(line: list[str]) -> list[str]:
        return [word for word in line if word != "--producer-props"]

    spread = spread_values(words)
    assert others(spread) == others(words)
    assert spread_values(spread) == spread


# --- lists and pairs ------------------------------------------------------------------------------


def test_in_flight_is_a_list_in_the_order_given() -> None:
    assert parse_in_flight("1,5,20") == (1, 5, 20)
    assert parse_in_flight(" 5 , 5 ") == (5, 5)


@given(st.lists(st.integers(1, plans.MAX_IN_FLIGHT), min_size=1, max_size=plans.MAX_RUNS))
def test_in_flight_round_trips(runs: list[int]) -> None:
    assert parse_in_flight(",".join(map(str, runs))) == tuple(runs)


@given(st.text(max_size=40) | st.from_regex(r"[0-9]{1,10}(,[0-9]{1,3}){0,3}", fullmatch=True))
def test_in_flight_is_numbers_in_range_or_a_usage_error(text: str) -> None:
    """Any text for `--in-flight` is a list of numbers in range, or raises UsageError."""
    numbers = [word.strip() for word in text.split(",")]
    if all(re.fullmatch(r"0*[1-9][0-9]{0,5}", word) and len(word) <= 9 for word in numbers):
        assert parse_in_flight(text) == tuple(map(int, numbers))
    else:
        with pytest.raises(UsageError, match="--in-flight: "):
            parse_in_flight(text)


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "1,,5", "0", "-1", "1.5", "x", "1 5", "9" * 5000, "٣", "1_0", "+1"]
)
def test_a_malformed_in_flight_list_is_refused_by_name_and_shortly(text: str) -> None:
    """The error about a malformed `--in-flight` names the flag, and is short."""
    with pytest.raises(UsageError, match="--in-flight") as caught:
        parse_in_flight(text)
    assert len(str(caught.value)) < 6000
    assert refused(in_flight=text) == str(caught.value)


def test_too_many_runs_are_refused() -> None:
    """More than 64 runs are refused."""
    with pytest.raises(UsageError, match="65 runs, at most 64"):
        parse_in_flight(",".join(["1"] * 65))


def test_a_property_value_may_hold_equals_signs() -> None:
    assert parse_properties(["a=b=c", "d="]) == {"a": "b=c", "d": ""}


@pytest.mark.parametrize("item", ["", "batch.size", "=5", " =5"])
def test_a_property_is_name_and_value(item: str) -> None:
    with pytest.raises(UsageError, match="is not name=value"):
        parse_properties([item])


def test_a_property_given_two_values_is_refused_and_twice_the_same_is_not() -> None:
    """A property may be given twice only with the same value."""
    with pytest.raises(UsageError, match=r"batch\.size was given twice, with two values"):
        parse_properties(["batch.size=1", "batch.size=2"])
    assert parse_properties(["a=1", "a=1"]) == {"a": "1"}


# --- defaults -------------------------------------------------------------------------------------


def test_without_flags_it_is_a_short_run_on_the_embedded_cluster() -> None:
    """Without flags, `aioidem perf` plans one short run on the embedded cluster."""
    plan = plan_perf()
    assert plan.bootstrap is None
    assert plan.topic == "perf"
    assert plan.in_flight == (5,)
    assert plan.num_records is None
    assert plan.duration == plans.DEFAULT_DURATION
    assert plan.record_size == 1000
    assert plan.throughput == math.inf
    assert (plan.rtt, plan.retain, plan.brokers, plan.partitions) == (0.0, 5, 1, 1)


def test_the_demo_of_the_readme_is_a_plan() -> None:
    """The flags of README's demo make a valid plan."""
    plan = plan_perf(
        rtt_ms=150,
        retain=20,
        in_flight="1,5,20",
        duration=3,
        record_size=1000,
        producer_props=["late.sealing=false", "batch.size=16384"],
    )
    assert plan.rtt == pytest.approx(0.15)
    assert [plan.config(n, "h:1").max_in_flight_requests_per_connection for n in (1, 5, 20)] == [
        1,
        5,
        20,
    ]
    assert not plan.config(1, "h:1").late_sealing


def test_java_s_spelling_of_the_servers_is_understood() -> None:
    """The property bootstrap.servers selects the cluster, as in Java's tool."""
    plan = plan_perf(producer_props=["bootstrap.servers=h:1"], topic="t", num_records=5)
    assert plan.bootstrap == "h:1"
    assert plan.config(5, "h:1").bootstrap_servers == (("h", 1),)


def test_java_s_spelling_of_in_flight_is_understood() -> None:
    """Java's property for requests in flight is the same as `--in-flight` with one number."""
    name = "max.in.flight.requests.per.connection"
    assert plan_perf(producer_props=[f"{name}=7"]).in_flight == (7,)
    assert plan_perf(producer_props=[f"{name}=7"], in_flight="7").in_flight == (7,)
    assert "one number" in refused(producer_props=[f"{name}=7,8"])


def test_random_values_are_the_same_in_every_run_and_not_all_alike() -> None:
    """Random values differ from one another, and are the same in every run."""
    first, second = plan_perf(record_size=100), plan_perf(record_size=100)
    assert first.values == second.values
    assert len(set(first.values)) > 1
    assert {len(value) for value in first.values} == {100}


def test_large_values_do_not_fill_the_memory() -> None:
    """The random values of a plan take a few MiB of memory at most."""
    plan = plan_perf(
        record_size=900_000, producer_props=["max.request.size=1048576", "buffer.memory=33554432"]
    )
    assert sum(map(len, plan.values)) <= 4 << 20


def test_the_largest_values_are_made_like_small_ones() -> None:
    """The documented limit is the limit of a value, and not of the source of random numbers."""
    size = 1 << 28
    props = [f"max.request.size={size + 100}", f"buffer.memory={2 * size}"]
    [value] = plan_perf(record_size=size, producer_props=props).values
    assert len(value) == size


# --- contradictions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"num_records": 5, "duration": 3.0}, ["--num-records", "--duration"]),
        ({"record_size": 5, "payload_file": Path("x")}, ["--record-size", "--payload-file"]),
        ({"payload_delimiter": ","}, ["--payload-delimiter", "--payload-file"]),
        ({**REMOTE, "rtt_ms": 5.0}, ["--rtt", "--bootstrap-server"]),
        ({**REMOTE, "retain": 20}, ["--retain", "--bootstrap-server"]),
        ({**REMOTE, "brokers": 1}, ["--brokers", "--bootstrap-server"]),
        ({**REMOTE, "partitions": 1}, ["--partitions", "--bootstrap-server"]),
        ({**REMOTE, "rtt_ms": 0.0, "retain": 5}, ["--rtt, --retain"]),
        ({**REMOTE, "producer_props": ["bootstrap.servers=g:1"]}, ["h:9092", "g:1"]),
        ({"bootstrap_server": "h:1", "num_records": 1}, ["--topic"]),
        ({"bootstrap_server": "h:1", "topic": "t"}, ["--num-records", "--duration"]),
        (
            {"transactional_id": "x", "producer_props": ["transactional.id=y"]},
            ["--transactional-id x", "transactional.id=y"],
        ),
        ({"transactional_id": "x", "producer_props": ["acks=1"]}, ["acks"]),
        ({"transaction_duration_ms": 60_000}, ["--transaction-duration-ms", "60 s"]),
        (
            {
                "in_flight": "5",
                "producer_props": ["max.in.flight.requests.per.connection=4"],
            },
            ["--in-flight 5", "=4"],
        ),
    ],
)
def test_flags_that_contradict_each_other_are_named(
    flags: dict[str, Any], words: list[str]
) -> None:
    """The error about contradicting flags names each of them."""
    message = refused(**flags)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("flags", "flag"),
    [
        ({"transaction_duration_ms": 0}, "--transaction-duration-ms"),
        ({"transaction_duration_ms": -5}, "--transaction-duration-ms"),
        ({"num_records": 0}, "--num-records"),
        ({"num_records": -1}, "--num-records"),
        ({"num_records": 2**63}, "--num-records"),
        ({"duration": 0.0}, "--duration"),
        ({"duration": -1.0}, "--duration"),
        ({"duration": math.nan}, "--duration"),
        ({"duration": math.inf}, "--duration"),
        ({"record_size": 0}, "--record-size"),
        ({"record_size": 2**31}, "--record-size"),
        ({"throughput": 0.0}, "--throughput"),
        ({"throughput": -2.0}, "--throughput"),
        ({"throughput": math.nan}, "--throughput"),
        ({"throughput": math.inf}, "--throughput"),
        ({"rtt_ms": -1.0}, "--rtt"),
        ({"rtt_ms": math.nan}, "--rtt"),
        ({"rtt_ms": 60_001.0}, "--rtt"),
        ({"retain": 4}, "--retain"),
        ({"brokers": 0}, "--brokers"),
        ({"brokers": 17}, "--brokers"),
        ({"partitions": 0}, "--partitions"),
        ({"topic": ""}, "--topic"),
        ({"topic": "a b"}, "--topic"),
        ({"topic": ".."}, "--topic"),
        ({"topic": "t" * 250}, "--topic"),
        ({**REMOTE, "bootstrap_server": "h:99999"}, "--bootstrap-server"),
        ({**REMOTE, "bootstrap_server": ""}, "--bootstrap-server"),
        ({**REMOTE, "bootstrap_server": "h:x", "producer_props": ["acks=1"]}, "--bootstrap-server"),
        ({"transactional_id": ""}, "--transactional-id"),
        ({"transactional_id": "", "producer_props": ["linger.ms=5"]}, "--transactional-id"),
        ({"producer_props": ["transactional.id="]}, "--producer-props"),
        ({"producer_props": ["no.such=1"]}, "--producer-props"),
        ({"producer_props": ["acks=1"]}, "--producer-props"),
        ({"producer_props": ["delivery.timeout.ms=1"]}, "--producer-props"),
        ({"producer_props": ["batch.size=x"]}, "--producer-props"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_flag(flags: dict[str, Any], flag: str) -> None:
    assert refused(**flags).startswith(f"{flag}: ")


def test_a_record_no_request_can_carry_is_refused() -> None:
    """The error about a record larger than a request or the buffer names the option to raise."""
    assert "max.request.size" in refused(record_size=2_000_000)
    assert "buffer.memory" in refused(
        record_size=50_000, producer_props=["buffer.memory=40000", "batch.size=100"]
    )


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["json_file", "report_file"])
def test_an_output_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, flag: str
) -> None:
    """An output file that cannot be written is refused before the run starts."""
    assert "is a directory" in refused(**{flag: tmp_path})
    assert "is not a directory" in refused(**{flag: tmp_path / "none" / "file"})
    assert "File name too long" in refused(**{flag: tmp_path / ("x" * 300)})


def test_a_file_in_a_folder_that_takes_no_new_ones_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result takes the place of a file as a new file, which its folder must permit."""
    there = tmp_path / "out.json"
    there.touch()
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    assert refused(json_file=there) == f"--json: {there} cannot be written"
    assert refused(json_file=tmp_path / "new.json").endswith("new.json cannot be written")
    assert plan_perf(json_file=Path(os.devnull)).json_file == Path(os.devnull)


def test_no_file_is_written_over_another(tmp_path: Path) -> None:
    """Two flags cannot name one file, however it is spelled; what is no file takes both outputs."""
    there = tmp_path / "out"
    again = tmp_path / ".." / tmp_path.name / "out"
    for _ in range(2):  # before there is such a file, and after
        message = refused(json_file=there, report_file=again)
        assert message.startswith(f"--json and --report: both name {again}")
        there.write_text("a value\n")
    assert refused(payload_file=there, json_file=there).startswith("--payload-file and --json: ")
    plan_perf(json_file=Path(os.devnull), report_file=Path(os.devnull))


def test_the_missing_extra_of_the_report_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "pip install 'aioidem[report]'" in refused(report_file=tmp_path / "r.html")


# --- the buffer -----------------------------------------------------------------------------------


def sealed(**flags: Any) -> PerfPlan:
    props = ["late.sealing=false", *flags.pop("producer_props", [])]
    return plan_perf(producer_props=props, **flags)


@given(st.integers(1, 200), st.integers(200, 20_000), st.integers(1, 4))
def test_a_timed_sealed_run_queues_two_windows(
    in_flight: int, record_size: int, partitions: int
) -> None:
    """With a duration and `late.sealing=false`, the buffer has room for two windows of batches.

    A window is `in_flight` batches of `batch.size` for each partition.
    """
    plan = sealed(record_size=record_size, partitions=partitions, duration=1.0)
    config = plan.config(in_flight, "h:1")
    record = NewRecord(plan.values[0])
    room = room_for(record.value, config.buffer_memory)
    counts = range(1, 2 + config.batch_size // record_size)
    sizes = (len(build_batch([record] * count).data) for count in counts)
    batch = max(1, sum(1 for size in sizes if size <= config.batch_size))
    batches = 2 * in_flight * partitions
    # `batch` is how many records fit into a batch by exact sizes. The plan estimates the sizes (of
    # offset and timestamp deltas), and may reckon with one record less per batch. The buffer is at
    # most Kafka's default of 32 MiB.
    least, most = batches * max(1, batch - 1), batches * batch
    assert config.buffer_memory == 32 << 20 or least <= room <= most


@dataclass(frozen=True)
class NewRecord:
    value: bytes
    key: None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0


def room_for(value: bytes, memory: int) -> int:
    """Return how many records of this value a buffer has room for while no batch is in flight."""
    limit = memory - memory // COPIES_SHARE
    return limit // (record_size_bound(None, value, ()) + RECORD_MEMORY)


def test_two_windows_of_the_demo_are_whole_batches_of_16_records() -> None:
    """In README's demo, the buffer holds two windows: 2 x `in_flight` batches of 16 records."""
    plan = sealed(record_size=1000, duration=3.0)
    for in_flight in (1, 5, 20):
        memory = plan.config(in_flight, "h:1").buffer_memory
        assert room_for(plan.values[0], memory) == 2 * in_flight * 16


def test_the_buffer_is_kafka_s_when_given_counted_or_sealed_late() -> None:
    """`buffer.memory` stays as given; with a record count or late sealing it is Kafka's default."""
    given_size = sealed(duration=1.0, producer_props=["buffer.memory=5000000"])
    assert given_size.config(1, "h:1").buffer_memory == 5_000_000
    assert sealed(num_records=10).config(1, "h:1").buffer_memory == 32 << 20
    assert plan_perf(duration=1.0).config(1, "h:1").buffer_memory == 32 << 20


# --- transactions, as Kafka's tool has them -------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "transactional_id", "duration"),
    [
        ({"transactional_id": "x"}, "x", 3.0),
        ({"producer_props": ["transactional.id=x"]}, "x", 3.0),
        ({"transactional_id": "x", "producer_props": ["transactional.id=x"]}, "x", 3.0),
        ({"transactional_id": "x", "transaction_duration_ms": 500}, "x", 0.5),
        ({"transaction_duration_ms": 1}, "performance-producer-", 0.001),
    ],
)
def test_an_id_or_a_duration_means_transactions(
    flags: dict[str, Any], transactional_id: str, duration: float
) -> None:
    """A transactional ID or a transaction duration makes a transactional load."""
    plan = plan_perf(**flags)
    assert plan.transaction_duration == duration
    config = plan.config(5, "h:1")
    assert config.transactional_id is not None
    assert config.transactional_id.startswith(transactional_id)


def test_neither_means_none() -> None:
    """With neither a transactional ID nor a transaction duration, the load is not transactional."""
    plan = plan_perf()
    assert plan.transaction_duration is None
    assert plan.config(5, "h:1").transactional_id is None
