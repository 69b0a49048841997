"""`aioidem broker` prints its address, serves clients, and ends with a signal."""

from __future__ import annotations

import gc
import signal
import socket
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._cli import main
from aioidem._cli.broker import BrokerPlan, TopicPlan, parse_topic, plan_broker
from aioidem._load.usage import UsageError
from aioidem.errors import InternalError
from tests.commands import AIOIDEM

Captured = pytest.CaptureFixture[str]


def test_a_topic_may_have_a_number_of_partitions() -> None:
    """`--topic NAME:N` creates a topic with N partitions."""
    assert parse_topic("t") == TopicPlan("t", 1)
    assert parse_topic("t:12") == TopicPlan("t", 12)


@given(st.text(max_size=20) | st.from_regex(r"[a-z]{1,3}:[0-9]{0,6}", fullmatch=True))
def test_a_topic_is_understood_or_refused_by_name(text: str) -> None:
    """Any text after `--topic` is accepted, or refused in a message that names the flag."""
    try:
        topic = parse_topic(text)
    except UsageError as error:
        message = str(error)
    else:
        message = "--topic: "
        assert text in (topic.name, f"{topic.name}:{text.partition(':')[2]}")
        assert 1 <= topic.partitions <= 1000
    assert message.startswith("--topic: ")


def test_the_defaults_are_one_broker_of_today() -> None:
    plan = plan_broker()
    assert (plan.brokers, plan.retain, plan.rtt, plan.port, plan.topics) == (1, 5, 0.0, 0, ())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield the process of `aioidem broker` and the first line it printed, which is its address."""
    with subprocess.Popen(
        [*AIOIDEM, "broker", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_listens_where_it_was_asked_to_and_a_signal_ends_it_cleanly(number: int) -> None:
    """`aioidem broker` listens on the port it was given, and a signal ends it with status 0."""
    port = free_port()
    with running("--port", str(port)) as (process, address):
        assert address == f"127.0.0.1:{port}"
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert (out, err) == ("", "")


def test_it_serves_what_it_was_asked_for(capsys: Captured) -> None:
    """`aioidem broker` serves the topics and brokers that its flags ask for."""
    words = ["--brokers", "2", "--retain", "20", "--rtt", "10", "--topic", "t:2"]
    with running(*words) as (_, address):
        assert address.count(",") == 1
        perf = f"perf --bootstrap-server {address} --topic t --num-records 200 --in-flight 20"
        assert main(perf.split()) == 0
    assert "200 of 200" in capsys.readouterr().out


def test_a_port_that_is_taken_is_status_1_and_one_line(capsys: Captured) -> None:
    """If the port is in use, the command ends with status 1 and one line that names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["broker", "--port", str(port)]) == 1
    with warnings.catch_warnings():
        # anyio before 4.11 does not close the socket that it could not bind.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith("aioidem broker: ")
    assert "in use" in line
    assert f"127.0.0.1:{port}" in line


def test_a_request_that_a_broker_failed_on_is_told_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def serve(_: BrokerPlan) -> int:
        raise InternalError("broker 0 failed on a MetadataRequest v12")

    monkeypatch.setattr("aioidem._cli.broker.serve", serve)
    assert main(["broker"]) == 1
    assert capsys.readouterr().err == ("aioidem broker: broker 0 failed on a MetadataRequest v12\n")
