"""Findings are plain functions of facts: those that no embedded cluster can show."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._admin.asking import Place
from aioidem._broker.entities import respond
from aioidem._config import ProducerConfig
from aioidem._doctor.connections import connection_findings
from aioidem._doctor.diagnosis import diagnose, exit_status
from aioidem._doctor.facts import (
    BrokerSeen,
    ClockSeen,
    Configs,
    Facts,
    Failure,
    FailureKind,
    PartitionSeen,
    ProbeSeen,
    TopicSeen,
    Tried,
    WantedRate,
)
from aioidem._doctor.failures import failure_of
from aioidem._doctor.finding import Finding, Severity
from aioidem._doctor.finding import FindingName as Name
from aioidem._doctor.in_flight import reach_of
from aioidem._doctor.probing import range_end
from aioidem._doctor.questions import quorum_clock
from aioidem._doctor.remembering import remembering_findings
from aioidem._doctor.report import lines
from aioidem.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SslAuthenticationError,
)

CONFIG = ProducerConfig.build("kafka:9092")
SERVER = Tried(Place("kafka", 9092), "10.0.0.1", "c")


def facts(**more: Any) -> Facts:
    return Facts(**{"config": CONFIG, "tried": (SERVER,), **more})


def only(found: list[Finding], name: Name) -> Finding:
    [finding] = [each for each in found if each.name is name]
    return finding


# --- connections ----------------------------------------------------------------------------------


def test_a_cluster_elsewhere_that_advertises_the_clients_own_machine() -> None:
    """A loopback address is an error only if the bootstrap servers are on another machine."""
    for host in ("localhost", "127.0.0.1", "::1"):
        local = (BrokerSeen(1, Place(host, 9092)),)
        found = [*connection_findings(facts(brokers=local))]
        assert only(found, Name.LOOPBACK_LISTENER).severity is Severity.ERROR
        here = SERVER._replace(address="127.0.0.1")
        near = [*connection_findings(facts(brokers=local, tried=(here,)))]
        assert Name.LOOPBACK_LISTENER not in {each.name for each in near}


def test_an_address_that_fails_beside_one_of_the_same_name_is_a_note() -> None:
    """A client connects to another address of the name."""
    failure = Failure(FailureKind.REFUSED, "refused")
    other = SERVER._replace(address="10.0.0.2", cluster_id=None, failure=failure)
    found = only([*connection_findings(facts(tried=(SERVER, other)))], Name.REFUSED)
    assert found.severity is Severity.NOTE
    assert "10.0.0.2" in found.seen


@pytest.mark.parametrize("kind", FailureKind, ids=lambda kind: kind.name.lower())
def test_each_kind_of_failure_is_a_finding_with_a_cure(kind: FailureKind) -> None:
    tried = (SERVER._replace(failure=Failure(kind, "the text")),)
    [found] = connection_findings(facts(tried=tried))
    assert found.severity is Severity.ERROR
    assert found.cure
    assert "the text" in found.seen


def caused(error: KafkaError, *causes: BaseException) -> KafkaError:
    """Return the error with this chain of causes."""
    last: BaseException = error
    for cause in causes:
        last.__cause__ = cause
        last = cause
    return error


def system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def unverified(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    return error


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


LOST, TLS = KafkaConnectionError("lost"), SslAuthenticationError("TLS")
GROUP = ExceptionGroup("two addresses", [system(errno.EHOSTUNREACH), system(errno.ECONNREFUSED)])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (caused(LOST.__copy__(), system(errno.ECONNREFUSED)), FailureKind.REFUSED),
        (caused(LOST.__copy__(), system(errno.ENETUNREACH)), FailureKind.UNREACHABLE),
        (caused(LOST.__copy__(), GROUP), FailureKind.REFUSED),
        (caused(LOST.__copy__(), socket.gaierror(-2, "?")), FailureKind.NAME_NOT_KNOWN),
        (caused(LOST.__copy__(), TimeoutError()), FailureKind.NO_ANSWER),
        (KafkaTimeoutError("no answer"), FailureKind.NO_ANSWER),
        (LOST.__copy__(), FailureKind.HUNG_UP),
        (caused(TLS.__copy__(), unverified(19)), FailureKind.TLS_UNTRUSTED),
        (caused(TLS.__copy__(), OSError(), unverified(62)), FailureKind.TLS_HOST_NAME),
        (caused(TLS.__copy__(), unverified(10)), FailureKind.TLS_OUT_OF_DATE),
        (
            caused(TLS.__copy__(), alert("TLSV13_ALERT_CERTIFICATE_REQUIRED")),
            FailureKind.TLS_CLIENT_CERTIFICATE,
        ),
        (caused(TLS.__copy__(), alert("NO_SHARED_CIPHER")), FailureKind.TLS_FAILED),
        (AuthenticationFailedError("no"), FailureKind.SASL_REFUSED),
        (KafkaError("new"), FailureKind.OTHER),
    ],
)
def test_why_a_connection_failed(error: KafkaError, kind: FailureKind) -> None:
    assert failure_of(error).kind is kind


# --- the rate -------------------------------------------------------------------------------------


def led(partitions: int, *, trip: float, configs: Configs) -> Facts:
    """Return the facts of a topic whose partitions one broker leads."""
    broker = BrokerSeen(
        1,
        Place("b", 9092),
        produce=(3, 14),
        round_trips=(trip,),
        topic_configs={"t": configs},
    )
    parts = tuple(PartitionSeen(each, 1, (1, 2), (1, 2)) for each in range(partitions))
    return facts(brokers=(broker,), topics=(TopicSeen("t", partitions=parts),))


def test_the_rate_is_window_times_batch_over_round_trip() -> None:
    """It is bounded by the window, by the requests in flight and by the size of a request."""
    unknown = Configs(int(ErrorCode.topic_authorization_failed))
    one = reach_of(few := led(1, trip=0.15, configs=unknown), few.topics[0])
    assert one is not None
    assert one.fixed == one.grown == pytest.approx(5 * 16384 / 0.15)
    known = Configs(values={"max.message.bytes": "100000"})
    two = reach_of(more := led(2, trip=0.15, configs=known), more.topics[0])
    assert two is not None
    assert two.grown == pytest.approx(2 * 5 * 100_000 / 0.15)
    hundred = reach_of(many := led(100, trip=0.15, configs=known), many.topics[0])
    assert hundred is not None
    assert hundred.grown == pytest.approx(5 * CONFIG.max_request_size / 0.15)


def test_what_is_advised_reaches_the_rate() -> None:
    """With the batch size that the finding names, the rate is reached."""
    unknown = Configs(int(ErrorCode.topic_authorization_failed))
    slow = led(2, trip=0.15, configs=unknown)._replace(wanted=WantedRate(5e6))
    found = only(diagnose(slow), Name.RATE_NOT_REACHED)
    assert "DESCRIBE_CONFIGS" in found.cure
    size = int(found.cure.partition("batch_size=")[2].split(";")[0])
    better = slow._replace(config=ProducerConfig.build("kafka:9092", batch_size=size))
    assert only(diagnose(better), Name.RATE).severity is Severity.OK
    tight = slow._replace(config=ProducerConfig.build("kafka:9092", batch_size=size - 1024))
    assert only(diagnose(tight), Name.RATE_NOT_REACHED)


def test_batches_that_the_broker_compresses_again_do_not_grow() -> None:
    """Their size in the log is not known, so the rate is that of `batch_size`."""
    configs = Configs(values={"max.message.bytes": "100000", "compression.type": "gzip"})
    seen = led(1, trip=0.15, configs=configs)
    plain = reach_of(seen, seen.topics[0])
    zstd = ProducerConfig.build("kafka:9092", compression_type="zstd")
    other = reach_of(seen._replace(config=zstd), seen.topics[0])
    assert plain is not None
    assert other is not None
    assert plain.grown > plain.fixed == other.fixed == other.grown


# --- replicas -------------------------------------------------------------------------------------


def test_more_replicas_in_sync_are_asked_for_than_there_are() -> None:
    """Before 3.7 (Produce v10) brokers refused that; since then they count the replicas."""
    configs = Configs(values={"min.insync.replicas": "3"})
    seen = led(1, trip=0.01, configs=configs)
    assert only(diagnose(seen), Name.NO_SPARE_REPLICA)
    old = seen._replace(brokers=(seen.brokers[0]._replace(produce=(0, 9)),))
    assert only(diagnose(old), Name.TOO_FEW_IN_SYNC).severity is Severity.ERROR


def test_an_election_that_may_lose_records() -> None:
    configs = Configs(values={"unclean.leader.election.enable": "true"})
    seen = led(1, trip=0.01, configs=configs)
    assert only(diagnose(seen), Name.UNCLEAN_ELECTION).severity is Severity.WARNING


# --- clocks and what brokers remember -------------------------------------------------------------


def test_a_clock_that_differs_by_less_than_the_measurement_is_right() -> None:
    slow_link = ClockSeen("the clock of broker 1", 2.0, 1.5)
    assert only([*remembering_findings(facts(clocks=(slow_link,)))], Name.CLOCK)
    near = slow_link._replace(margin=0.1)
    assert only([*remembering_findings(facts(clocks=(near,)))], Name.CLOCK_SKEW)


def test_a_clock_behind_by_more_than_topics_accept_is_an_error() -> None:
    """The client's records are then in the broker's future."""
    configs = Configs(values={"message.timestamp.after.max.ms": "3600000"})
    behind = ClockSeen("the clock of broker 1", -4000.0, 0.1)
    seen = led(1, trip=0.01, configs=configs)
    found = only(diagnose(seen._replace(clocks=(behind,))), Name.CLOCK_SKEW)
    assert found.severity is Severity.ERROR
    ahead = only(diagnose(seen._replace(clocks=(behind._replace(ahead=4000.0),))), Name.CLOCK_SKEW)
    assert ahead.severity is Severity.WARNING


def test_the_time_of_the_active_controller() -> None:
    """DescribeQuorum has it as the time at which the leader of the metadata log caught up."""

    def answer(stamp: int, code: ErrorCode = ErrorCode.none) -> Any:
        voters = [
            {"replica_id": 2, "log_end_offset": 5, "last_caught_up_timestamp": 1},
            {"replica_id": 1, "log_end_offset": 5, "last_caught_up_timestamp": stamp},
        ]
        part = {
            "partition_index": 0,
            "error_code": ErrorCode.none,
            "leader_id": 1,
            "leader_epoch": 3,
            "high_watermark": 5,
            "current_voters": voters,
            "observers": [],
        }
        topics = [{"topic_name": "__cluster_metadata", "partitions": [part]}]
        return respond(55, 1, {"error_code": code, "topics": topics})

    assert quorum_clock(answer(1_700_000_000_500)) == (1, 1_700_000_000.5)
    assert quorum_clock(answer(-1)) is None
    assert quorum_clock(answer(5, ErrorCode.cluster_authorization_failed)) is None


def test_the_range_of_times_that_a_refusal_names() -> None:
    """The text is that of Kafka's brokers, whose range may begin before 1970."""
    text = "Timestamp 5 of message with offset 0 is out of range. The timestamp should be within "
    assert range_end(["", f"{text}[-9223370260710424559, 1776147951248]"]) == 1776147951248
    assert range_end([text, "Timestamp is out of range"]) is None


def probed(**more: Any) -> Finding:
    probe = ProbeSeen("t", 0, 20, **more)
    names = {Name.RETAINED, Name.FEWER_RETAINED, Name.PROBE_FAILED}
    found = remembering_findings(facts(probe=probe))
    [finding] = [each for each in found if each.name in names]
    return finding


def test_a_refusal_that_a_restart_can_explain_proves_nothing() -> None:
    """A refusal counts only after two batches besides the newest were recognised."""
    assert probed(recognised=(2,), refused=3).name is Name.PROBE_FAILED
    assert probed(recognised=(2, 3), refused=4).name is Name.FEWER_RETAINED
    assert probed(recognised=tuple(range(2, 21))).name is Name.RETAINED
    twice = probed(recognised=(2, 3), written_twice=4)
    assert (twice.name, twice.severity) == (Name.FEWER_RETAINED, Severity.ERROR)


# --- all findings ---------------------------------------------------------------------------------


def test_the_worst_finding_comes_first_and_decides_the_status() -> None:
    broken = facts(
        brokers=(BrokerSeen(1, Place("b", 9092), failure=Failure(FailureKind.REFUSED, "x")),),
        unfinished=("broker 1",),
        timeout=5.0,
    )
    found = diagnose(broken)
    assert [each.severity for each in found] == sorted(
        (each.severity for each in found), reverse=True
    )
    assert exit_status(found) == 1
    assert exit_status([each for each in found if each.severity < Severity.WARNING]) == 0


def test_what_a_broker_sends_does_not_reach_the_terminal() -> None:
    """Control characters in a finding are escaped, and a line is at most 100 characters long."""
    found = Finding(Name.CONNECTION_FAILED, Severity.ERROR, "a\x1b[2J" + " word" * 60, "b", "c")
    shown = [*lines([found])]
    assert "\x1b" not in "".join(shown)
    assert max(map(len, shown)) <= 100
    assert shown[-1] == "1 error"
