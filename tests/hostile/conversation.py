"""Fuzz targets that are conversations: a connection, or a whole producer, with a corrupted broker.

Behind a `Mangler` is an honest broker. The Mangler corrupts the broker's answers as the input says,
and passes them unchanged once the input is used up. So every input is a whole conversation, and a
producer sends one more record at its end, to show that it still works. Time is virtual: an hour of
timeouts takes milliseconds.
"""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

from aioidem import Delivery, Producer
from aioidem._config import ProducerConfig
from aioidem._network.connection import Connection
from aioidem._network.sasl.client import sasl_client
from aioidem._network.transport import Connector
from aioidem._protocol.frames import FrameSplitter, frame
from aioidem._protocol.messages import decode_request, encode_request, request_type
from aioidem._protocol.versions import ApiKey
from aioidem.broker import EmbeddedCluster
from aioidem.errors import InternalError, KafkaConnectionError, KafkaError
from tests.simulated.whole import VirtualLoop

from .parsers import check_text, declared
from .samples import filled, response

__all__ = ["LIVED", "OPERATIONS", "connection", "producer"]

LIVED: Counter[str] = Counter()
"""The outcomes of the last record, which is sent when the broker is honest again."""

_FAIL_SECONDS = 3600.0
_PATIENCE: Mapping[str, Any] = {
    "max_block": 20.0,
    "request_timeout": 5.0,
    "delivery_timeout": 20.0,
    "connection_setup_timeout": 5.0,
    "max_frame_bytes": 1 << 20,
}


class Script:
    """Reads the input byte by byte; after its end there are zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def over(self) -> bool:
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def number(self, size: int = 1) -> int:
        return int.from_bytes(self.take(size), "big")


class Mangler:
    """Corrupts one direction of a connection; None in its output closes the connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._splitter = FrameSplitter(1 << 27)

    def feed(self, data: bytes) -> list[bytes | None]:
        passed: list[bytes | None] = []
        for payload in self._splitter.feed(data):
            if self._script.over:
                passed.append(frame(payload))
                continue
            chosen = self._script.number()
            spoil = OPERATIONS[(chosen & 0x7F) % len(OPERATIONS)]
            # With the high bit set, the frame keeps its old length prefix, which may now be wrong.
            made = spoil(self._script, payload)
            if made and chosen & 0x80 and made[0] is not None:
                made[0] = frame(payload)[:4] + made[0][4:]
            passed += made
        return passed


def _honest(_script: Script, payload: bytes) -> list[bytes | None]:
    return [frame(payload)]


def _overwrite(script: Script, payload: bytes) -> list[bytes | None]:
    at, value = script.number(2) % len(payload), script.take(1)
    return [frame(payload[:at] + value + payload[at + 1 :])]


def _overwrite_four(script: Script, payload: bytes) -> list[bytes | None]:
    at, value = script.number(2) % len(payload), script.take(4)
    return [frame(payload[:at] + value + payload[at + len(value) :])]


def _insert(script: Script, payload: bytes) -> list[bytes | None]:
    at = script.number(2) % len(payload)
    return [frame(payload[:at] + script.take(script.number() % 32) + payload[at:])]


def _delete(script: Script, payload: bytes) -> list[bytes | None]:
    at, count = script.number(2) % len(payload), script.number() % 32
    return [frame((payload[:at] + payload[at + count :]) or b"\0")]


def _truncate(script: Script, payload: bytes) -> list[bytes | None]:
    return [frame(payload[: script.number(2) % len(payload)] or b"\0")]


def _invent(script: Script, payload: bytes) -> list[bytes | None]:
    """Replace all of an answer but its correlation id with bytes of the script."""
    return [frame(payload[:4] + script.take(script.number()))]


def _raw(script: Script, _payload: bytes) -> list[bytes | None]:
    return [script.take(script.number()) or b"\0"]


def _twice(_script: Script, payload: bytes) -> list[bytes | None]:
    return [frame(payload), frame(payload)]


def _hang_up(_script: Script, _payload: bytes) -> list[bytes | None]:
    return [None]


def _hang_up_within(script: Script, payload: bytes) -> list[bytes | None]:
    return [frame(payload)[: script.number()], None]


def _swallow(_script: Script, _payload: bytes) -> list[bytes | None]:
    return []


OPERATIONS: tuple[Callable[[Script, bytes], list[bytes | None]], ...] = (
    _honest,
    _overwrite,
    _overwrite_four,
    _insert,
    _delete,
    _truncate,
    _invent,
    _raw,
    _twice,
    _hang_up,
    _hang_up_within,
    _swallow,
)
"""The operations on an answer, selected by a byte of the script."""


class Mangled(ByteStream):
    """A stream whose incoming bytes are corrupted."""

    def __init__(self, inner: ByteStream, mangler: Mangler) -> None:
        self._inner = inner
        self._mangler = mangler
        self._ready: deque[bytes | None] = deque()
        self.closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._ready:
            self._ready.extend(self._mangler.feed(await self._inner.receive(max_bytes)))
        await anyio.lowlevel.checkpoint()
        data = self._ready.popleft()
        if data is None:
            self._ready.appendleft(None)
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        await self._inner.send(item)

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        self.closed = True
        await self._inner.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {}


class Broker(ByteStream):
    """Answers each request at once with something well-formed, without a real broker.

    Anything that is not a request, such as a TLS handshake, makes it close the connection.
    """

    def __init__(self) -> None:
        self._requests = FrameSplitter(1 << 27)
        self._answers: deque[bytes] = deque()
        self._changed = anyio.Event()
        self._hung_up = False
        self.closed = False

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self.closed:
            raise anyio.ClosedResourceError
        try:
            payloads = self._requests.feed(item)
        except KafkaError:
            self._hung_up = True
            payloads = []
        for payload in payloads:
            header, _ = decode_request(payload)
            self._answers.append(
                response(header.api_key, header.api_version, header.correlation_id)
            )
        self._changed.set()

    async def receive(self, max_bytes: int = 65536) -> bytes:  # noqa: ARG002 - anyio's name
        await anyio.lowlevel.checkpoint()
        while not self._answers:
            if self.closed:
                raise anyio.ClosedResourceError
            if self._hung_up:
                raise anyio.EndOfStream
            self._changed = anyio.Event()
            await self._changed.wait()
        return self._answers.popleft()

    async def send_eof(self) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self.closed = True
        self._changed.set()
        await anyio.lowlevel.checkpoint()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {}


class Connecting:
    """A connector on whose connections one script says how each answer is corrupted."""

    def __init__(self, script: Script, inner: Connector | None = None) -> None:
        self._script = script
        self._inner = inner
        self.streams: list[Mangled] = []

    async def connect(self, host: str, port: int) -> ByteStream:
        if self._inner is None:
            stream: ByteStream = Broker()
        else:
            stream = await self._inner.connect(host, port)
        self.streams.append(Mangled(stream, Mangler(self._script)))
        return self.streams[-1]


def in_virtual_time(main: Callable[[], Awaitable[None]]) -> None:
    """Run a function on its own event loop, for at most one hour of virtual time."""

    async def bounded() -> None:
        with anyio.fail_after(_FAIL_SECONDS):
            await main()

    random.seed(0)
    anyio.run(bounded, backend="asyncio", backend_options={"loop_factory": VirtualLoop})


# --- one connection -------------------------------------------------------------------------------

_ASKED = (ApiKey.METADATA, ApiKey.INIT_PRODUCER_ID, ApiKey.FETCH, ApiKey.DESCRIBE_CONFIGS)


def connection(data: bytes) -> None:
    """Open a connection, with SASL if the first byte is odd, and send four requests on it."""
    in_virtual_time(lambda: _converse(Script(data)))


async def _converse(script: Script) -> None:
    config = ProducerConfig.build(
        "h:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_allow_plaintext=True,
        sasl_username="user",
        sasl_password="pencil",
    )
    sasl = sasl_client(config) if script.number() & 1 else None
    connecting = Connecting(script)
    with declared():
        opened = await Connection.open(
            connecting,
            "broker",
            9092,
            client_id="me",
            setup_timeout=5.0,
            max_frame_bytes=1 << 20,
            sasl=sasl,
        )
        await _ask(opened)
    assert all(stream.closed for stream in connecting.streams)


async def _ask(opened: Connection) -> None:
    asked: list[int] = []
    answered: list[int] = []
    for api_key in _ASKED:
        if opened.versions.supports(api_key):
            schema: Any = request_type(api_key, opened.versions.choose(api_key))
            asked.append(opened.next_correlation_id())
            request = encode_request(filled(schema), correlation_id=asked[-1], client_id="me")
            opened.write(request, correlation_id=asked[-1])

    def take(correlation_id: int, _frame: bytes) -> None:
        answered.append(correlation_id)
        if len(answered) == len(asked):
            opened.close_soon("that was all")

    causes: list[Exception] = []
    with anyio.move_on_after(60.0):
        causes.append(await opened.run(take, lambda _written, _read: None))
    assert answered == asked[: len(answered)]
    for cause in causes:
        assert isinstance(cause, KafkaError)
        assert not isinstance(cause, InternalError)
        check_text(str(cause))


# --- a whole producer -----------------------------------------------------------------------------


class _Log(logging.Handler):
    """Keeps the producer's log records."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def producer(data: bytes) -> None:
    """Send eight records to two partitions, then one more when answers are no longer corrupted."""
    log = _Log()
    logger = logging.getLogger("aioidem")
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(log)
    try:
        in_virtual_time(lambda: _produce(Script(data)))
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)
        logger.propagate = propagate
    for line in log.lines:
        check_text(line)
        assert "payload" not in line


async def _produce(script: Script) -> None:
    options = script.number()
    retain = 20 if options & 1 else 5
    async with EmbeddedCluster(transport="memory", retain=retain, seed=1) as cluster:
        cluster.create_topic("t", partitions=2)
        connecting = Connecting(script, cluster.connector)
        sender = Producer(
            cluster.bootstrap_servers,
            connector=connecting,
            batch_size=1,
            late_sealing=False,
            compression_type="gzip" if options & 2 else "none",
            **_PATIENCE,
        )
        with declared():
            try:
                await sender.start()
                await _send_all(sender)
                await _send_last(sender)
            finally:
                await sender.close(30.0)
    assert all(stream.closed for stream in connecting.streams)


async def _send_all(sender: Producer) -> None:
    deliveries: list[Delivery] = [
        sender.send_nowait("t", b"payload", partition=number % 2) for number in range(8)
    ]
    began = anyio.current_time()
    for delivery in deliveries:
        with declared():
            await delivery
    # The sum of delivery_timeout (20 s), one request_timeout of grace (5 s), max_block (20 s) for a
    # partition that vanished, and 1 s of slack.
    assert anyio.current_time() - began <= 46.0, "futures settled late"
    assert all(delivery.done() for delivery in deliveries)


async def _send_last(sender: Producer) -> None:
    # First wait until all back-offs and the longest throttle time that is accepted are over.
    with anyio.move_on_after(400.0):
        await anyio.sleep_forever()
    try:
        await sender.send("t", b"payload", partition=0)
        LIVED["acknowledged"] += 1
    except InternalError:
        raise
    except KafkaConnectionError as error:
        raise AssertionError(f"the producer does not live: {error}") from error
    except KafkaError as error:
        check_text(str(error))
        LIVED[type(error).__name__] += 1
