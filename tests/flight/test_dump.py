"""A producer's flight record: what is in the file, what never is, and when it is written."""

from __future__ import annotations

import enum
import gzip
import json
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, Producer, Record, errors
from aioidem._broker.intercept import Action, Drop, Refuse, RequestSeen
from aioidem._broker.security import BrokerSecurity
from aioidem._config import ProducerConfig
from aioidem._engine import ProducerCore
from aioidem._engine.steps import FetchMetadata
from aioidem._flight.dumping import Dumping
from aioidem._flight.record import FlightRecord
from aioidem._flight.recorder import Draws, FlightRecorder
from aioidem._flight.replay import Replay
from aioidem._protocol.metadata import MetadataUpdate, TopicUpdate
from aioidem.broker import EmbeddedCluster
from aioidem.errors import DeliveryTimeoutError, FlightRecordError, ProducerFenced
from tests.security.tools import Authority
from tests.waiting import until

pytestmark = pytest.mark.anyio

PRODUCE = 0
SECRET = "canary-5ecr3t"
HIDDEN = ("payload-5ecr3t", "key-5ecr3t", "header-5ecr3t", "name-5ecr3t")


@pytest.fixture
def anyio_backend() -> str:
    """Use asyncio only: the event loop makes no difference to what is recorded."""
    return "asyncio"


def run(path: Path) -> Replay:
    """Replay a file to its end."""
    replay = Replay(FlightRecord.read(path))
    for _ in replay.run():
        pass
    return replay


def attend(producer: Producer) -> None:
    """Have the recorder begin a segment, if one is due, as the Sender does once a second."""
    recorder = producer._flight  # noqa: SLF001 - no second passes in a test
    assert recorder is not None
    recorder.clock = lambda: 0.0
    recorder.attend()


def files_in(folder: Path) -> list[tuple[Path, bytes]]:
    """Return the files of a folder, with their contents."""
    return [(path, path.read_bytes()) for path in folder.iterdir()]


@pytest.mark.parametrize("kept", [10_000, 40])
async def test_a_producer_is_replayed(kept: int, tmp_path: Path) -> None:
    """Single records, many records of one call and records with keys replay to the same batches."""
    path = tmp_path / "a.flight.gz"
    async with EmbeddedCluster() as cluster:
        options: dict[str, Any] = {"linger": 0.001} if kept > 1000 else {}
        async with Producer(cluster.bootstrap_servers, flight_recorder=kept, **options) as producer:
            for number in range(30):
                await producer.send("t", b"%d" % number)
            attend(producer)
            await producer.send_many("t", [Record(b"v", key=b"%d" % n) for n in range(200)])
            for number in range(300):
                producer.send_nowait("u", b"x" * number)
            await producer.flush()
            for number in range(30):
                await producer.send("u", b"%d" % number)
            attend(producer)
            await producer.send("t", b"last")
            await producer.dump_flight_record(path)
    record = await anyio.to_thread.run_sync(FlightRecord.read, path)
    assert (record.state is None) is (kept == 10_000)
    replay = await anyio.to_thread.run_sync(run, path)
    assert [str(each) for each in replay.differences] == []
    assert replay.violations == []


async def test_a_batch_that_the_next_record_fills_is_replayed(tmp_path: Path) -> None:
    """It is sent when a large record comes, though the mean of that one's batch is small."""
    path = tmp_path / "a.flight.gz"
    async with (
        EmbeddedCluster() as cluster,
        Producer(cluster.bootstrap_servers, linger=10.0, batch_size=1000) as producer,
    ):
        small = [producer.send_nowait("t", bytes(90), partition=0) for _ in range(5)]
        producer.send_nowait("t", bytes(700), partition=0)
        await small[0]
        for _ in range(7):
            producer.send_nowait("t", b"x", partition=0)
        await producer.flush()
        await producer.dump_flight_record(path)
    replay = await anyio.to_thread.run_sync(run, path)
    polls = [each for each in replay.record.events if each[0] == "poll"]
    assert [batch.records for each in polls for batch in each[4]] == [5, 8]
    assert [str(each) for each in replay.differences] == []


async def test_metadata_that_has_not_changed_is_kept_and_written_once(tmp_path: Path) -> None:
    """An answer may have thousands of partitions, and comes again and again."""
    path = tmp_path / "a.flight.gz"
    async with EmbeddedCluster() as cluster:
        cluster.create_topic("t", partitions=100)
        async with Producer(cluster.bootstrap_servers, metadata_max_age=0.02) as producer:
            await producer.send("t", b"one")
            recorder = producer._flight  # noqa: SLF001 - what is kept is looked at
            assert recorder is not None

            def kept() -> list[tuple[TopicUpdate, ...]]:
                answers = [each[2] for each in recorder.latest.events if each[0] == "answer"]
                updates = [each for each in answers if isinstance(each, MetadataUpdate)]
                return [each.topics for each in updates if each.topics]

            await until(lambda: len(kept()) > 2)
            assert len(set(map(id, kept()))) == 1
            assert len({id(topic.partitions) for each in kept() for topic in each}) == 1
            polls = [each[3] for each in recorder.latest.events if each[0] == "poll" and each[3:]]
            asked = [step for each in polls for step in each if isinstance(step, FetchMetadata)]
            assert len(asked) > 2
            assert len({id(step.topics) for step in asked if step.topics}) == 1
            await producer.dump_flight_record(path)
    text = gzip.decompress(path.read_bytes()).decode()
    events = "\n".join(text.splitlines()[2:-1])
    assert events.count("metadata.MetadataUpdate") > 2
    assert events.count("metadata.TopicUpdate") == 1
    replay = await anyio.to_thread.run_sync(run, path)
    assert [str(each) for each in replay.differences] == []
    answers = [each[2] for each in replay.record.events if each[0] == "answer"]
    updates = [each for each in answers if isinstance(each, MetadataUpdate)]
    assert {len(topic.partitions) for each in updates for topic in each.topics} == {100}


class Topics(enum.StrEnum):
    """Topics as a program may name them."""

    ORDERS = "orders"


class Name(str):
    """A text of a class of the program's."""

    __slots__ = ()


async def test_texts_of_classes_of_the_program_are_written_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.flight.gz"
    async with (
        EmbeddedCluster() as cluster,
        Producer(
            cluster.bootstrap_servers,
            client_id=Name("checkout"),
            compression_type=enum.StrEnum("Codec", ["GZIP"]).GZIP,  # type: ignore[attr-defined]
            flight_recorder=20,
        ) as producer,
    ):
        for topic in (Topics.ORDERS, Name("refunds")):
            for _ in range(15):
                await producer.send(topic, b"v")
            await producer.send_many(topic, [b"v"] * 50)
            attend(producer)
        assert {type(producer.config.client_id), type(producer.config.compression_type)} == {str}
        await producer.dump_flight_record(path)
    replay = await anyio.to_thread.run_sync(run, path)
    assert replay.differences == []


async def test_a_file_has_no_path_of_a_key(tmp_path: Path) -> None:
    """The error that a connection could not be opened for names it, and is in the file without."""
    path, chain = tmp_path / "a.flight.gz", tmp_path / "canary.pem"
    identity = Authority().identity("me")
    chain.write_text(f"{identity.key}\n{identity.chain}")
    producer = Producer(
        "127.0.0.1:1",
        security_protocol="SSL",
        ssl_keystore_location=str(chain),
        flight_recorder=20,
        max_block=0.5,
    )
    chain.unlink()
    with pytest.raises(errors.ConfigError, match=r"canary\.pem"):
        await producer.start()
    await producer.dump_flight_record(path)
    assert "canary" not in gzip.decompress(path.read_bytes()).decode()


async def test_a_file_has_no_payload_key_header_or_credential(tmp_path: Path) -> None:
    """Neither what records contain nor a password is in a file, not even in the engine's state."""
    path = tmp_path / "a.flight.gz"
    payload, key, header, name = HIDDEN
    security = BrokerSecurity(mechanisms=("PLAIN",), users={"alice": SECRET})
    async with (
        EmbeddedCluster(security=security) as cluster,
        Producer(
            cluster.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username="alice",
            sasl_password=SECRET,
            sasl_allow_plaintext=True,
            flight_recorder=20,
            compression_type="gzip",
        ) as producer,
    ):
        for _ in range(2):
            for _ in range(30):
                await producer.send("t", payload.encode(), key=key.encode())
            attend(producer)
        producer.send_nowait("t", payload.encode(), headers=[(name, header.encode())])
        await producer.send_many("t", [payload.encode()] * 50)
        producer.set_sasl_credentials("alice", SECRET)
        await producer.dump_flight_record(path)
    text = gzip.decompress(path.read_bytes()).decode()
    assert json.loads(text.splitlines()[1]) is not None
    for secret in (SECRET, *HIDDEN):
        assert secret not in text
        assert secret.encode().hex() not in text
    assert "alice" not in text
    assert path.stat().st_mode & 0o077 == 0
    assert '["credentials"]' in text.splitlines()
    replay = await anyio.to_thread.run_sync(run, path)
    assert replay.differences == []


async def test_a_record_that_ends_unknown_is_dumped_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file is written when a record ends UNKNOWN, and the callback gets the same bytes.

    Records that end so soon after cause no second file.
    """
    got: list[tuple[str, bytes]] = []
    told = threading.Event()

    def take(reason: str, content: bytes) -> None:
        got.append((reason, content))
        told.set()

    async with EmbeddedCluster() as cluster:
        producer = Producer(
            cluster.bootstrap_servers,
            flight_record_directory=str(tmp_path),
            flight_record_callback=take,
        )
        await producer.start()
        await producer.send("t", b"one")
        seen = anyio.Event()

        def drop(request: RequestSeen) -> Action | None:
            if request.api_key != PRODUCE:
                return None
            seen.set()
            return Drop()

        cluster.intercept(drop)
        deliveries = [producer.send_nowait("t", b"two")]
        with anyio.fail_after(20):
            await seen.wait()
        await producer.close(timeout=0)
    assert deliveries[0].status is DeliveryStatus.UNKNOWN
    assert await anyio.to_thread.run_sync(told.wait, 20)
    ((reason, content),) = got
    assert reason.startswith("records of t-0 ended UNKNOWN: ProducerClosed")
    ((path, written),) = await anyio.to_thread.run_sync(files_in, tmp_path)
    assert written == content
    assert f"{reason}: flight record written to {path}" in caplog.text
    replay = await anyio.to_thread.run_sync(run, path)
    assert [str(each) for each in replay.differences] == []
    (incident,) = replay.record.incidents
    assert (incident.topic, incident.base_sequence, incident.count) == ("t", 1, 1)
    failed = [each for each in replay.record.events if each[0] == "failed"]
    assert [each[1:6] for each in failed] == [("t", 0, "UNKNOWN", "ProducerClosed", 1)]


async def test_a_record_that_no_thread_can_write_harms_no_producer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may permit no further thread; the producer goes on, and the log says so."""

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with (
        EmbeddedCluster() as cluster,
        Producer(
            cluster.bootstrap_servers,
            delivery_timeout=1.0,
            request_timeout=0.2,
            linger=0,
            flight_record_directory=str(tmp_path),
        ) as producer,
    ):
        await producer.send("t", b"one")
        cluster.intercept(lambda seen: Drop() if seen.api_key == PRODUCE else None)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(DeliveryTimeoutError):
                await producer.send("t", b"two")
            attend(producer)
        cluster.intercept(None)
        await producer.send("t", b"three")
    assert "the flight record could not be written: can't start new thread" in caplog.text


def test_automatic_records_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one automatic flight record a minute, and ten of one producer in all."""
    now = 0.0
    monkeypatch.setattr("aioidem._flight.dumping.time.monotonic", lambda: now)
    got: list[str] = []
    config = ProducerConfig.build(
        "h:1", flight_record_callback=lambda reason, _content: got.append(reason)
    )
    draws = Draws(lambda: 0.5)
    recorder = FlightRecorder(ProducerCore(config, random=draws.random), draws, 100)
    each = Dumping(recorder, config)
    for minute in range(15):
        for second in (0, 30):
            now = minute * 60.0 + second
            each.offer(f"{minute}:{second:02}")
            each.wait()
    assert got == [f"{minute}:00" for minute in range(10)]


async def test_without_a_recorder_there_is_nothing_to_dump(tmp_path: Path) -> None:
    """The option `flight_recorder` turns the recorder off; a directory that is missing is named."""
    async with EmbeddedCluster() as cluster:
        async with Producer(cluster.bootstrap_servers, flight_recorder=0) as producer:
            await producer.send("t", b"one")
            with pytest.raises(FlightRecordError, match="flight_recorder is 0"):
                await producer.dump_flight_record(tmp_path / "a.flight.gz")
        async with Producer(cluster.bootstrap_servers) as producer:
            with pytest.raises(FlightRecordError, match="No such file"):
                await producer.dump_flight_record(tmp_path / "missing" / "a.flight.gz")
    assert await anyio.to_thread.run_sync(files_in, tmp_path) == []


@pytest.mark.parametrize("name", ["", ".", "/", "a\0b"])
async def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    producer = Producer("h:1")
    with pytest.raises(FlightRecordError, match="cannot be written to"):
        await producer.dump_flight_record(name)


async def test_lost_data_is_dumped() -> None:
    """A file is written when a broker turns out to have lost what it had acknowledged."""
    got: list[str] = []
    async with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("t", replication=2)
        leader = cluster.leader("t")
        async with Producer(
            cluster.bootstrap_servers, flight_record_callback=lambda why, _: got.append(why)
        ) as producer:
            await producer.send("t", b"kept")
            cluster.pause_follower("t", 0, 1 - leader)
            cluster.shrink_isr("t", 0, 1 - leader)
            for _ in range(3):
                await producer.send("t", b"lost")
            cluster.move_leader("t", 0, 1 - leader)
            await producer.send("t", b"after")
            assert producer.statistics().data_loss_events > 0
    with anyio.fail_after(20):
        await until(lambda: got == ["data was lost"])


async def test_the_end_of_a_fenced_producer_is_dumped() -> None:
    """A file is written when a producer is fenced, although no record fails by that."""
    got: list[str] = []
    async with EmbeddedCluster() as cluster:
        options: dict[str, Any] = {"transactional_id": "x"}
        async with Producer(
            cluster.bootstrap_servers,
            flight_record_callback=lambda why, _: got.append(why),
            **options,
        ) as producer:
            await producer.begin_transaction()
            await producer.send("t", b"one")
            async with Producer(cluster.bootstrap_servers, **options):
                with pytest.raises(ProducerFenced):
                    await producer.commit_transaction()
    with anyio.fail_after(20):
        await until(lambda: got == ["the producer ended: ProducerFenced"])


async def test_an_error_that_ends_the_producer_is_the_reason_of_the_dump() -> None:
    """If it leaves records UNKNOWN, the one file names the error that ended the producer."""
    got: list[str] = []
    actions: list[Action] = [Drop(), Refuse(ErrorCode.cluster_authorization_failed)]
    answers = iter(actions)

    def disturb(request: RequestSeen) -> Action | None:
        return next(answers, None) if request.api_key == PRODUCE else None

    async with EmbeddedCluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=2)
        assert cluster.leader("t", 0) != cluster.leader("t", 1)
        async with Producer(
            cluster.bootstrap_servers, flight_record_callback=lambda why, _: got.append(why)
        ) as producer:
            for partition in (0, 1):
                await producer.send("t", b"v", partition=partition)
            cluster.intercept(disturb)
            for partition in (0, 1):
                producer.send_nowait("t", b"v", partition=partition)
            counts = await producer.flush()
            assert (counts.not_written, counts.unknown) == (1, 1)
    with anyio.fail_after(20):
        await until(lambda: bool(got))
    assert got == ["the producer ended: ClusterAuthorizationFailedError"]
