"""`aioidem resolve` prints a verdict for each incident; its status says if all are decided.

The verdicts themselves are tested in `tests/producer/test_resolve.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from aioidem import Producer, errors
from aioidem._broker.intercept import Drop
from aioidem._cli import main
from aioidem.broker import EmbeddedCluster, ThreadedCluster
from aioidem.incident import Incident, incidents_to_json

Captured = pytest.CaptureFixture[str]
FIELDS: dict[str, Any] = {
    "topic": "t",
    "partition": 0,
    "producer_id": 1,
    "producer_epoch": 0,
    "base_sequence": 0,
    "count": 1,
    "timestamp_ms": 1,
}
HASTY: dict[str, Any] = {"delivery_timeout": 1.2, "request_timeout": 0.6, "retry_backoff": 0.1}


async def incident_of(cluster: ThreadedCluster, *, written: bool, fenced: bool) -> Incident:
    """Return the incident of a record whose answers were lost."""
    async with Producer(cluster.bootstrap_servers, **HASTY) as producer:
        await producer.send("t", b"before")
        cluster.intercept(lambda seen: Drop(processed=written) if seen.api_key == 0 else None)
        with pytest.raises(errors.KafkaError) as caught:
            await producer.send("t", b"doubtful")
        cluster.intercept(None)
        if fenced:
            await producer.send("t", b"after")
    assert caught.value.incident is not None
    return caught.value.incident


@pytest.mark.embedded
def test_each_incident_has_a_line_and_the_status_says_if_all_are_decided(
    tmp_path: Path, capsys: Captured
) -> None:
    """WRITTEN and ABSENT are decided; what is not fenced is not, and gives status 1."""
    with EmbeddedCluster.in_thread() as cluster:
        cluster.create_topic("t")
        written = anyio.run(lambda: incident_of(cluster, written=True, fenced=False))
        absent = anyio.run(lambda: incident_of(cluster, written=False, fenced=True))
        still = anyio.run(lambda: incident_of(cluster, written=False, fenced=False))
        file, told = tmp_path / "incidents.json", tmp_path / "told.json"
        words = ["resolve", "--incident", str(file), "--json", str(told)]
        words += ["--bootstrap-server", cluster.bootstrap_servers]
        file.write_text(incidents_to_json([written, absent]))
        assert main(words) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert "WRITTEN at offset" in first
        assert first.startswith(f"t-0 producer id {written.producer_id} epoch ")
        assert ": ABSENT: " in second
        answers = json.loads(told.read_text())
        assert [each["verdict"] for each in answers] == ["WRITTEN", "ABSENT"]
        assert Incident.from_json(json.dumps(answers[0]["incident"])) == written
        # Editors on Windows begin a file with a mark.
        file.write_text(still.to_json(), encoding="utf-8-sig")
        assert main(words) == 1
        assert "UNDECIDED (NOT_FENCED)" in capsys.readouterr().out


@pytest.mark.embedded
def test_the_record_after_the_last_sequence_number_has_number_0(
    tmp_path: Path, capsys: Captured
) -> None:
    """It is printed as the log has it."""
    file = tmp_path / "incident.json"
    last = {"base_sequence": 2**31 - 1, "count": 2, "index": 1}
    file.write_text(json.dumps(FIELDS | last))
    with EmbeddedCluster.in_thread() as cluster:
        cluster.create_topic("t")
        words = ["--incident", str(file), "--bootstrap-server", cluster.bootstrap_servers]
        main(["resolve", *words])
    assert capsys.readouterr().out.startswith("t-0 producer id 1 epoch 0 sequence 0: ")


@pytest.mark.embedded
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_file_that_cannot_be_written_takes_no_verdict_along(
    tmp_path: Path, capsys: Captured
) -> None:
    """What was found is printed, and a line on standard error says what became of the file."""
    with EmbeddedCluster.in_thread() as cluster:
        cluster.create_topic("t")
        written = anyio.run(lambda: incident_of(cluster, written=True, fenced=False))
        file = tmp_path / "incidents.json"
        file.write_text(written.to_json())
        words = ["resolve", "--incident", str(file), "--json", "/dev/full"]
        assert main([*words, "--bootstrap-server", cluster.bootstrap_servers]) == 1
    told = capsys.readouterr()
    assert "WRITTEN at offset" in told.out
    assert told.err == "aioidem resolve: --json: /dev/full: No space left on device\n"


def test_the_verdicts_do_not_take_the_place_of_the_incidents(
    tmp_path: Path, capsys: Captured
) -> None:
    file = tmp_path / "incidents.json"
    file.write_text(json.dumps(FIELDS))
    words = ["resolve", "--incident", str(file), "--bootstrap-server", "127.0.0.1:1"]
    assert main([*words, "--json", str(file), "--timeout", "0.1"]) == 2
    assert capsys.readouterr().err.startswith("aioidem resolve: --incident and --json: both name ")
    assert json.loads(file.read_text()) == FIELDS


def test_a_file_of_tls_that_is_not_there_is_bad_usage(tmp_path: Path, capsys: Captured) -> None:
    """It is found at once: to repeat the attempt would not make the file appear."""
    file = tmp_path / "incidents.json"
    file.write_text(json.dumps(FIELDS))
    words = ["resolve", "--incident", str(file), "--bootstrap-server", "127.0.0.1:1"]
    words += ["--timeout", "1", "--consumer-props", "security.protocol=SSL"]
    assert main([*words, "ssl.truststore.location=/nowhere.pem"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "ssl_truststore_location='/nowhere.pem' cannot be loaded" in line


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        (None, [], "--incident:"),
        ("{", [], "no JSON at character 0"),
        ("[]", [], "has no incident"),
        ('{"topic": "t"}', [], "the field partition is missing"),
        (json.dumps(FIELDS | {"topic": "a b"}), [], "incident 1: topic 'a b': expected 1 to 249"),
        (json.dumps([FIELDS, FIELDS | {"topic": "\ud800"}]), [], "incident 2: topic "),
        ("\xff", [], "--incident:"),
        (None, ["--timeout", "0"], "--timeout: 0 is not above 0"),
        (None, ["--json", "/none/there"], "--json: /none is not a directory"),
        (None, ["--json", "x" * 300], "--json: xxx"),
        (None, ["--consumer-props", "security.protocol=NONE"], "security"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: Captured, text: str | None, more: list[str], message: str
) -> None:
    """Bad usage is reported before any broker is asked, with status 2."""
    file = tmp_path / "incidents.json"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    words = ["resolve", "--incident", str(file), "--bootstrap-server", "127.0.0.1:1", *more]
    assert main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("aioidem resolve: ")
    assert message in line
