"""Fuzz targets that are plain functions of bytes.

A target returns nothing. A documented error (`KafkaError`, except `InternalError`, which is a
defect) is caught, and its text is checked, because it is logged: it must be short and printable.
Any other exception is a failure.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from aioidem._config.jaas import JaasError, read_jaas
from aioidem._config.secret import Secret
from aioidem._engine.read_back import written_batches
from aioidem._network.sasl import scram
from aioidem._network.sasl.aws_msk_iam import AwsMskIam
from aioidem._network.sasl.gssapi import Gssapi
from aioidem._network.sasl.mechanism import Mechanism
from aioidem._network.sasl.oauthbearer import OAuthBearer
from aioidem._network.sasl.oidc import _token_of
from aioidem._network.sasl.plain import Plain
from aioidem._protocol.broker_config import broker_facts
from aioidem._protocol.frames import FrameSplitter
from aioidem._protocol.messages import (
    MAX_THROTTLE_MS,
    correlation_id_of,
    decode_response,
    response_type,
)
from aioidem._protocol.metadata import MetadataUpdate, metadata_update
from aioidem._protocol.metadata_reader import read_metadata
from aioidem._protocol.produce import decode_produce_response
from aioidem._protocol.producer_id import producer_id_answer
from aioidem._protocol.producers import producers_answer
from aioidem._protocol.read_back import read_back_answer
from aioidem._protocol.sasl import authenticate_answer, check_handshake
from aioidem._protocol.topic_config import topic_config
from aioidem._protocol.topic_limit import topic_limit
from aioidem._protocol.versions import ApiKey, VersionNegotiation
from aioidem._records import Codec, read_batches
from aioidem._records.compression import decompress
from aioidem.errors import InternalError, KafkaError

from .samples import READ

__all__ = [
    "answer",
    "batch",
    "codec",
    "declared",
    "frames",
    "jaas",
    "sasl",
    "scram_server",
    "versions",
]

LIMIT: Final = 1 << 20
LONGEST_TEXT: Final = 3000
NONCE: Final = "rOprNGfwEbeRWgbNEkqO"
PASSWORD: Final = "pencil"


@contextmanager
def declared() -> Iterator[None]:
    """Catch the library's documented errors, and check that their text is safe to log."""
    try:
        yield
    except InternalError:
        raise
    except KafkaError as error:
        check_text(str(error))


def check_text(text: str) -> None:
    """Check that a text for the log is one short printable line."""
    assert text.isprintable(), f"not printable: {text[:200]!r}"
    assert len(text) <= LONGEST_TEXT, f"{len(text)} characters: {text[:200]!r}"


# --- the stream -----------------------------------------------------------------------------------


def frames(data: bytes) -> None:
    """Split a stream into frames, as it arrives in pieces.

    Byte 0 of the input is the size of each piece in bytes, and byte 1 the largest frame that is
    allowed, in units of 64 bytes. The stream follows.
    """
    piece, limit, stream = (*data[:1], 1)[0] or 1, 64 * ((*data[1:2], 1)[0] or 1), data[2:]
    splitter = FrameSplitter(limit)
    came, passed = bytearray(), 0
    with declared():
        for at in range(0, len(stream), piece):
            for each in splitter.feed(stream[at : at + piece]):
                assert 0 < len(each) <= limit
                came += len(each).to_bytes(4, "big") + each
            passed = at + piece
            assert len(splitter.pending) <= limit + 4
            assert stream.startswith(came)
            if splitter.error is not None:
                raise splitter.error
        assert bytes(came) + splitter.pending == stream[:passed]


# --- answers --------------------------------------------------------------------------------------


def answer(data: bytes) -> None:
    """Decode an answer of an API that aioidem uses; the first byte selects API and version."""
    if not data:
        return
    api_key, version = READ[data[0] % len(READ)]
    frame = data[1:]
    with declared():
        correlation_id_of(frame)
        if api_key == ApiKey.PRODUCE:
            _, produced = decode_produce_response(version, frame)
            assert 0 <= produced.throttle_ms <= MAX_THROTTLE_MS
            for part in produced.partitions:
                assert part.partition >= 0
                assert part.base_offset >= -1
                for text in (part.error_message, *(text for _, text in part.record_errors)):
                    check_text(text or "")
            return
        if api_key == ApiKey.METADATA:
            _metadata(read_metadata(version, frame, ("broker-0",)))
        schema: Any = response_type(api_key, version)
        _TAKE.get(api_key, _nothing)(decode_response(schema, frame)[1])


def _nothing(_response: Any) -> None:
    """Accept an answer of an API for which only the decoding is tested."""


def _metadata(update: MetadataUpdate) -> None:
    assert 0 <= update.throttle_ms <= MAX_THROTTLE_MS
    for broker in update.brokers:
        assert broker.node_id >= 0
        assert 0 < broker.port < 65536
        assert broker.host
        check_text(broker.host)
    assert all(part.index >= 0 for topic in update.topics for part in topic.partitions)


def _fetch(response: Any) -> None:
    page = read_back_answer(response, 1)
    written_batches(page.records)
    _read(page.records, partial_end=True)


def _authenticate(response: Any) -> None:
    lifetime = authenticate_answer(response).lifetime
    assert lifetime is None or 0 < lifetime <= 30 * 86400


def _producer_id(response: Any) -> None:
    assert 0 <= producer_id_answer(response).throttle_ms <= MAX_THROTTLE_MS


def _configs(response: Any) -> None:
    topic_config(response)
    for compression in ("none", "gzip"):
        limit = topic_limit(response, compression)
        assert limit is None or limit > 0
    facts = broker_facts(response)
    assert facts.expiration is None or facts.expiration > 0
    assert facts.sequence_cap is None or facts.sequence_cap > 0


_TAKE: Final[dict[int, Callable[[Any], object]]] = {
    ApiKey.METADATA: lambda response: _metadata(metadata_update(response)),
    ApiKey.FETCH: _fetch,
    ApiKey.INIT_PRODUCER_ID: _producer_id,
    ApiKey.DESCRIBE_CONFIGS: _configs,
    ApiKey.DESCRIBE_PRODUCERS: lambda response: producers_answer(response, "broker-0", 1),
    ApiKey.SASL_HANDSHAKE: lambda response: check_handshake(response, "PLAIN"),
    ApiKey.SASL_AUTHENTICATE: _authenticate,
}


def versions(data: bytes) -> None:
    """Negotiate API versions; the input is a series of answers, each after two bytes of length."""
    negotiation = VersionNegotiation("me", ("aioidem", "0"))
    asked = []
    with declared():
        for frame in _pieces(data):
            asked.append(negotiation.version)
            negotiation.request(len(asked))
            table = negotiation.answer(frame)
            if table is not None:
                assert 3 <= table.choose(ApiKey.PRODUCE) <= 14
                break
    assert asked == sorted(set(asked), reverse=True)


def _pieces(data: bytes, size: int = 2) -> Iterator[bytes]:
    """Yield the pieces of an input; before each piece is its length in `size` bytes."""
    while data:
        length = int.from_bytes(data[:size], "big")
        yield data[size : size + length]
        data = data[size + length :]


# --- records --------------------------------------------------------------------------------------


def batch(data: bytes) -> None:
    """Read record batches, as from an answer to Fetch.

    If the first byte is odd, the first batch's length is corrected, because otherwise hardly any
    input gets past the check of that length.
    """
    page = data[1:]
    if data[:1] and data[0] & 1 and len(page) > 12:
        page = page[:8] + (len(page) - 12).to_bytes(4, "big") + page[12:]
    with declared():
        written_batches(page)
        _read(page, partial_end=bool(data[:1] and data[0] & 2))


def _read(page: bytes, *, partial_end: bool) -> None:
    found = read_batches(page, partial=partial_end, max_decompressed_bytes=LIMIT, max_items=10_000)
    for each in found:
        assert len(repr(each)) < 400
        each.crc_ok()
        with declared():
            records = each.records()
            assert len(records) == each.count
            held = sum(len(record.key or b"") + len(record.value or b"") for record in records)
            assert held <= max(LIMIT, len(page))


def codec(data: bytes) -> None:
    """Decompress with the codec that the first byte selects.

    Codecs have a target of their own, because hardly any input of `batch` is valid up to its codec.
    """
    if data:
        with declared():
            assert len(decompress(Codec(data[0] % 5), data[1:], LIMIT)) <= max(LIMIT, len(data))


# --- authentication -------------------------------------------------------------------------------


def scram_server(data: bytes) -> None:
    """Run a SCRAM exchange, which may succeed only if the server's signature is right."""
    name = "SCRAM-SHA-512" if data[:1] == b"\1" else "SCRAM-SHA-256"
    with declared(), mock.patch.object(scram, "MAX_ITERATIONS", 4096):
        client = scram.Scram(name, "user", Secret(PASSWORD), NONCE)
        client.first()
        said: list[bytes] = []
        proof = ""
        for challenge in _pieces(data[1:]):
            said.append(challenge)
            reply = client.next(challenge)
            if reply is None:
                assert len(said) == 2
                assert _signature(name, said[0].decode(), proof) in said[1]
                return
            proof = reply.decode()


def _signature(name: str, server_first: str, client_final: str) -> bytes:
    """Compute the server's signature (`v=` of RFC 5802) without scramp, which the client uses."""
    hash_name = name.removeprefix("SCRAM-").replace("-", "").lower()
    fields = dict(each.split("=", 1) for each in server_first.split(","))
    salted = hashlib.pbkdf2_hmac(
        hash_name, PASSWORD.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    key = hmac.digest(salted, b"Server Key", hash_name)
    text = f"n=user,r={NONCE},{server_first},{client_final.rpartition(',p=')[0]}"
    return b"v=" + base64.b64encode(hmac.digest(key, text.encode(), hash_name))


def _mechanisms() -> list[Callable[[], Mechanism]]:
    return [
        lambda: Plain("user", Secret(PASSWORD)),
        lambda: OAuthBearer(Secret("token")),
        lambda: AwsMskIam("b-1.x.kafka.eu-west-1.amazonaws.com", user_agent="me"),
        lambda: Gssapi(_Context),
    ]


class _Context:
    """A substitute for the Kerberos library; a token of odd length is invalid."""

    complete = False

    def step(self, token: bytes | None) -> bytes | None:
        if token is not None and len(token) % 2:
            raise ValueError(f"bad token {token!r}")
        self.complete = token is not None and token.startswith(b"ok")
        return token

    def unwrap(self, message: bytes) -> bytes:
        if not message.startswith(b"w"):
            raise ValueError(f"not wrapped: {message.decode(errors='replace')}")
        return message[1:]

    def wrap(self, message: bytes) -> bytes:
        return b"w" + message


def sasl(data: bytes) -> None:
    """Run a SASL mechanism other than SCRAM, or read an OpenID provider's answer.

    The first byte of the input selects one of them.
    """
    if not data:
        return
    made = _mechanisms()
    chosen = data[0] % (len(made) + 1)
    if chosen == len(made):
        token, lifetime = _token_of(Secret(data[1:]))
        assert "token" not in repr(token)
        assert lifetime < float("inf")
        return
    with declared():
        mechanism = made[chosen]()
        # AwsMskIam (2) would sign its first message with this machine's credentials, so that is
        # left out.
        if chosen != 2:
            mechanism.first()
        for challenge in _pieces(data[1:], 1):
            if mechanism.next(challenge) is None:
                return


def jaas(data: bytes) -> None:
    """Parse a JAAS login configuration; the error for a malformed one must not quote its secret."""
    text = data.decode("utf-8", "replace")
    try:
        options = read_jaas(text)
    except JaasError as error:
        said = str(error)
    else:
        assert all(each.startswith("sasl_") for each in options)
        return
    check_text(said)
    assert "secret" not in said
