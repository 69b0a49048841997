"""`aioidem doctor` checks its flags, prints findings, and ends with a status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aioidem._cli import main
from aioidem._cli.doctor import parse_rate, plan_doctor
from aioidem._doctor.facts import WantedRate
from aioidem._load.usage import UsageError
from aioidem.broker import BrokerSecurity, EmbeddedCluster

Captured = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("text", "size", "rate"),
    [
        ("5MB/s", None, WantedRate(5e6)),
        ("500kB", 100, WantedRate(500e3, 100)),
        ("1.5GB", None, WantedRate(1.5e9)),
        ("20000", 200, WantedRate(4e6, 200)),
        ("20k/s", 200, WantedRate(4e6, 200)),
        (None, 200, None),
    ],
)
def test_a_rate_is_bytes_or_records_per_second(
    text: str | None, size: int | None, rate: WantedRate | None
) -> None:
    assert parse_rate(text, size) == rate


@pytest.mark.parametrize("text", ["fast", "-5MB", "0", "5XB", "", "1e9", "nan", "9" * 400])
def test_another_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--rate: "):
        parse_rate(text, 100)


def test_records_per_second_need_their_size() -> None:
    with pytest.raises(UsageError, match="--record-size"):
        parse_rate("20000", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--topic", "a/b"], "--topic: "),
        (["--write-to", ""], "--write-to: "),
        (["--timeout", "0"], "--timeout: 0 is not from 1 to 3600"),
        (["--timeout", "nan"], "--timeout: nan is not"),
        (["--rate", "5"], "--rate: "),
        (["--producer-props", "acks=7"], "acks"),
        (["--producer-props", "ssl.truststore.location=/nowhere.pem"], "ssl_truststore_location"),
        (["--command-config", "/nowhere"], "--command-config: "),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(
    words: list[str], said: str, capsys: Captured
) -> None:
    if "ssl" in words[-1]:
        words = [*words, "security.protocol=SSL"]
    assert main(["doctor", "--bootstrap-server", "h:9092", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("aioidem doctor: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1


def test_a_topic_to_write_to_is_examined_too() -> None:
    plan = plan_doctor(bootstrap_server="h:9092", topics=("a", "a"), write_to="b")
    assert plan.wanted.topics == ("a", "b")
    assert plan.wanted.write_to == "b"


def test_a_cluster_without_a_problem_is_status_0(capsys: Captured) -> None:
    with EmbeddedCluster.in_thread() as cluster:
        cluster.create_topic("t")
        words = ["doctor", "--bootstrap-server", cluster.bootstrap_servers, "--topic", "t"]
        assert main(words) == 0
        text = capsys.readouterr().out
        assert main([*words, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
    assert "[bootstrap]" in text
    assert result["exit_status"] == 0
    assert {each["name"] for each in result["findings"]} >= {"bootstrap", "window", "rate"}
    assert result["topics"][0]["partitions"][0]["leader"] == 0


def test_a_problem_is_status_1_and_the_password_is_not_shown(
    capsys: Captured, tmp_path: Path
) -> None:
    """The output names the problem, in text and in JSON, and no secret."""
    file = tmp_path / "client.properties"
    file.touch(mode=0o600)
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=alice\nsasl.password=canary-4471\n"
    )
    security = BrokerSecurity(mechanisms=("SCRAM-SHA-256",), users={"alice": "another"})
    with EmbeddedCluster.in_thread(security=security) as cluster:
        words = ["doctor", "--bootstrap-server", cluster.bootstrap_servers]
        words += ["--command-config", str(file)]
        assert main(words) == 1
        assert main([*words, "--json"]) == 1
    shown = capsys.readouterr()
    assert "[sasl-refused]" in shown.out
    assert '"sasl-refused"' in shown.out
    assert "canary-4471" not in shown.out + shown.err
