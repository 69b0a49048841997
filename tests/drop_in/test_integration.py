"""`aioidem.integrations.aiokafka` raises aiokafka's exceptions, and can replace its producer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import ModuleType
from typing import Any

import aiokafka
import aiokafka.errors
import aiokafka.producer.producer
import aiokafka.structs
import pytest
from kio.schema.errors import ErrorCode

from aioidem import DeliveryStatus, errors
from aioidem import _aiokafka as face
from aioidem._broker.intercept import Action, Refuse, RequestSeen
from aioidem.broker import EmbeddedCluster
from aioidem.integrations.aiokafka import AIOKafkaProducer, install, installed, uninstall

from .suite import raised

THEIRS = aiokafka.producer.producer.AIOKafkaProducer
TRANSLATION = AIOKafkaProducer._translation  # noqa: SLF001 - asked for every error there is


def translated(error: errors.KafkaError) -> Any:
    return TRANSLATION.error(error)


@pytest.mark.anyio
async def test_results_are_aiokafkas_structs(cluster: EmbeddedCluster) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        sent = await producer.send_and_wait("t", b"x", timestamp_ms=1234)
        assert type(sent) is aiokafka.structs.RecordMetadata
        assert type(sent.topic_partition) is aiokafka.structs.TopicPartition
        assert tuple(sent) == ("t", 0, ("t", 0), 0, 1234, 0, 0)
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"y")
        sent = await (await producer.send_batch(batch, "t", partition=0))
        assert type(sent) is aiokafka.structs.RecordMetadata
        empty = await (await producer.send_batch(producer.create_batch(), "t", partition=0))
        assert type(empty) is aiokafka.structs.RecordMetadata


@pytest.mark.anyio
async def test_batches_and_the_client_raise_aiokafkas_exceptions(cluster: EmbeddedCluster) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    with pytest.raises(aiokafka.errors.KafkaError, match="timestamp_ms -1") as refused:
        producer.create_batch().append(timestamp=-1, key=None, value=b"x")
    assert vars(refused.value)["status"] is DeliveryStatus.NOT_WRITTEN
    assert isinstance(refused.value.__cause__, errors.RecordError)
    async with producer:
        pass
    client = producer.client
    wait = client._wait_on_metadata  # noqa: SLF001 - the name that OpenTelemetry uses
    for asked in (client.force_metadata_update(), wait("t")):
        assert type(await raised(asked)) is aiokafka.errors.ProducerClosed


@pytest.mark.anyio
async def test_all_exceptions_are_of_aiokafkas_classes(cluster: EmbeddedCluster) -> None:
    def refuse(seen: RequestSeen) -> Action | None:
        return Refuse(ErrorCode.invalid_timestamp) if seen.api_key == 0 else None

    theirs = aiokafka.errors
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    early = await raised(producer.send("t", b"x"))
    assert type(early) is theirs.ProducerClosed
    assert isinstance(early.__cause__, errors.ProducerClosed)
    async with producer:
        await producer.partitions_for("t")
        assert type(await raised(producer.send("t", b"x" * 2_000_000))) is (
            theirs.MessageSizeTooLargeError
        )
        assert type(await raised(producer.send("t", None))) is theirs.KafkaError
        assert type(await raised(producer.send("t", "text"))) is TypeError
        assert type(await raised(producer.send("t", b"", partition=9))) is (
            theirs.UnknownTopicOrPartitionError
        )
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"x")
        await (await producer.send_batch(batch, "t", partition=0))
        assert type(await raised(producer.send_batch(batch, "t", partition=0))) is theirs.KafkaError
        assert type(await raised(producer.begin_transaction())) is theirs.IllegalOperation
        cluster.intercept(refuse)
        for future in (
            await producer.send("t", b"x", partition=0),
            await producer.send("t", b"y", partition=0),
        ):
            error: Any = await raised(future)
            assert type(error) is theirs.InvalidTimestampError
            assert error.status is DeliveryStatus.NOT_WRITTEN
            assert error.errno == 32
    for call in (producer.send("t", b""), producer.partitions_for("t")):
        assert type(await raised(call)) is theirs.ProducerClosed
    unreachable = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1")
    assert type(await raised(unreachable.start())) is theirs.KafkaConnectionError


ALL = [
    error
    for error in vars(errors).values()
    if isinstance(error, type)
    and issubclass(error, errors.KafkaError)
    and error is not errors.InvalidProducerEpoch  # aiokafka's producer calls it ProducerFenced
]


@pytest.mark.parametrize("arguments", [(), ("what happened",)])
def test_every_error_has_an_aiokafka_error(arguments: tuple[str, ...]) -> None:
    for ours in ALL:
        has_an_aiokafka_error(ours, arguments)


def has_an_aiokafka_error(ours: type[errors.KafkaError], arguments: tuple[str, ...]) -> None:
    error = ours(*arguments, status=DeliveryStatus.UNKNOWN)
    theirs = translated(error)
    assert type(theirs).__module__ == "aiokafka.errors"
    assert theirs.status is DeliveryStatus.UNKNOWN
    assert theirs.__cause__ is error
    assert str(theirs) or not arguments  # without arguments, some of aiokafka's errors have no text
    named = getattr(aiokafka.errors, ours.__name__, None)
    if isinstance(named, type) and ours is not errors.BrokerResponseError:
        assert type(theirs) is named
    if isinstance(error, errors.BrokerResponseError):
        assert isinstance(theirs, aiokafka.errors.KafkaError)
        assert theirs.errno == error.errno


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (errors.DeliveryTimeoutError, aiokafka.errors.KafkaTimeoutError),
        (errors.NotKafkaError, aiokafka.errors.KafkaConnectionError),
        (errors.ForkedProducerError, aiokafka.errors.KafkaError),
        (errors.InvalidRecord, aiokafka.errors.UnknownError),
        (errors.SaslAuthenticationFailed, aiokafka.errors.SaslAuthenticationFailed),
        (errors.SslAuthenticationError, aiokafka.errors.AuthenticationFailedError),
        (errors.ProducerFenced, aiokafka.errors.ProducerFenced),
        (errors.InvalidProducerEpoch, aiokafka.errors.ProducerFenced),
        (errors.TransactionAborted, aiokafka.errors.KafkaError),
        (errors.AbortableTransactionError, aiokafka.errors.KafkaError),
    ],
)
def test_what_aiokafka_lacks_becomes_its_nearest_ancestor(
    ours: type[errors.KafkaError], theirs: type[Exception]
) -> None:
    assert type(translated(ours("x"))) is theirs


def test_constructor_errors_are_value_and_type_errors() -> None:
    with pytest.raises(ValueError, match="acks"):
        AIOKafkaProducer(acks=7)
    with pytest.raises(TypeError, match="retries"):
        AIOKafkaProducer(retries=7)  # type: ignore[call-arg]


def test_it_takes_aiokafkas_place_and_gives_it_back() -> None:
    early = ModuleType("a_framework")
    early.AIOKafkaProducer = aiokafka.AIOKafkaProducer  # type: ignore[attr-defined]
    sys.modules[early.__name__] = early
    try:
        with installed():
            assert aiokafka.AIOKafkaProducer is AIOKafkaProducer
            assert aiokafka.producer.AIOKafkaProducer is AIOKafkaProducer
            assert early.AIOKafkaProducer is AIOKafkaProducer
            install()  # a second call changes nothing
        for module in (aiokafka, aiokafka.producer, aiokafka.producer.producer, early):
            assert module.AIOKafkaProducer is THEIRS
        uninstall()  # a second call changes nothing
        assert face.AIOKafkaProducer is not THEIRS
        assert sys.modules[__name__].__dict__["AIOKafkaProducer"] is AIOKafkaProducer
    finally:
        del sys.modules[early.__name__]


@pytest.mark.parametrize("entry", [None, object()], ids=["not to be imported", "a stub"])
def test_it_passes_over_what_is_no_module(monkeypatch: pytest.MonkeyPatch, entry: Any) -> None:
    """Python puts no bounds to what stands in `sys.modules`, and programs put None there."""
    monkeypatch.setitem(sys.modules, "not_a_module", entry)
    with installed():
        assert aiokafka.AIOKafkaProducer is AIOKafkaProducer


def test_the_drop_in_itself_needs_no_aiokafka() -> None:
    program = (
        "import sys; sys.modules['aiokafka'] = None; sys.modules['hypothesis'] = None\n"
        "import aioidem; aioidem.AIOKafkaProducer(); print('made')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == "made"


@pytest.mark.anyio
async def test_a_collector_gets_aiokafkas_exceptions(cluster: EmbeddedCluster) -> None:
    class Collector:
        def __init__(self) -> None:
            self.told: list[BaseException] = []

        def on_batch_failed(self, *, exception: BaseException, **_facts: object) -> None:
            self.told.append(exception)

        def __getattr__(self, name: str) -> Any:
            return lambda **_facts: None

    def refuse(seen: RequestSeen) -> Action | None:
        return Refuse(ErrorCode.invalid_timestamp) if seen.api_key == 0 else None

    collector: Any = Collector()
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, metrics_collector=collector
    ) as producer:
        await producer.partitions_for("t")
        cluster.intercept(refuse)
        future = await producer.send("t", b"x", partition=0)
        await asyncio.wait([future])
        assert isinstance(future.exception(), aiokafka.errors.InvalidTimestampError)
    assert [type(error) for error in collector.told] == [aiokafka.errors.InvalidTimestampError]
