"""The table of fuzz targets with their seeds, and the corpus of inputs that are kept.

A corpus is a text file per target with one input per line, in base64; a line that
begins with ``#`` says why the next input is there. Every run of the tests replays all inputs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from aioidem._protocol.frames import frame
from aioidem._protocol.versions import ApiKey
from aioidem._records import Codec
from aioidem._records.compression import compress

from . import cli_files, conversation, parsers, samples, token_endpoint, topic_values
from .budget import DEFAULT, Budget

__all__ = ["CORPUS", "TARGETS", "Target", "kept", "seeds"]

CORPUS: Final = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """A fuzz target.

    ``share`` is its fraction of a run's inputs, ``budget`` what one input may cost, and ``longest``
    the largest size of an input, in bytes.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    share: float
    budget: Budget = DEFAULT
    longest: int = 4096


def _frames() -> Iterator[bytes]:
    for piece in (1, 7, 255):
        for limit in (1, 255):
            yield bytes((piece, limit)) + frame(b"abcdefgh") + frame(b"x" * 64) + b"\0\0\0\5ab"
    for stranger in (b"HTTP/1.1 400\r\n", b"\x15\x03\x03\x00\x02\x02\x0a", b"\xff" * 8, bytes(8)):
        yield b"\3\1" + stranger
        yield b"\3\1" + frame(b"first") + stranger


def _answers() -> Iterator[bytes]:
    for chosen, (api_key, version) in enumerate(samples.READ):
        yield bytes((chosen,)) + samples.response(api_key, version)[4:]


def _sized(pieces: Iterable[bytes], size: int = 2) -> bytes:
    return b"".join(len(piece).to_bytes(size, "big") + piece for piece in pieces)


def _versions() -> Iterator[bytes]:
    for version in range(5):
        known = samples.response(ApiKey.API_VERSIONS, version)[4:]
        # The answer UNSUPPORTED_VERSION in the oldest format, version 0.
        refused = bytearray(samples.response(ApiKey.API_VERSIONS, 0)[4:])
        refused[4:6] = b"\0\x23"
        yield _sized([known])
        yield _sized([bytes(refused), known])
        yield _sized([bytes(refused)] * 6)


def _batches() -> Iterator[bytes]:
    made = samples.batches()
    for flags in range(4):
        for each in (*made, b"".join(made), made[0][:40]):
            yield bytes((flags,)) + each
    yield b"\1" + made[0][:61]


def _codecs() -> Iterator[bytes]:
    for codec in Codec:
        yield bytes((codec,)) + compress(codec, b"text, " * 50)
        yield bytes((codec,)) + compress(codec, b"")
    for codec, bomb in samples.bombs():
        yield bytes((codec,)) + bomb


def _scram() -> Iterator[bytes]:
    # The example of RFC 7677: the server's messages for its user name, nonce and password.
    first = (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    for flag in (b"\0", b"\1"):
        yield flag + _sized([first, final])
        yield flag + _sized([first, b"e=invalid-proof"])
        yield flag + _sized([first.replace(b"4096", b"100000000")])
        yield flag + _sized([b"m=ext," + first])
        yield flag + _sized([first + b",x=\n"])


def _sasl() -> Iterator[bytes]:
    for chosen in range(4):
        for challenges in ([b""], [b"ok", b"w\1\0\0\0", b""], [b'{"status":"invalid"}', b""]):
            yield bytes((chosen,)) + _sized(challenges, 1)
    yield b'\4{"access_token":"abc","expires_in":300}'
    yield b'\4{"access_token":1e999,"expires_in":"1e999"}'


def _jaas() -> Iterator[bytes]:
    yield (
        b"org.apache.kafka.common.security.scram.ScramLoginModule required "
        b'username="u" password="p\\"secret";'
    )
    yield b'PlainLoginModule required username=u\n password = "secret"'
    yield b"Krb5LoginModule required serviceName=kafka useKeyTab=true;"


def _scripts(answers: int, flags: int) -> Iterator[bytes]:
    """Yield inputs that corrupt one of the first `answers` answers, and one that corrupts many.

    The first byte of an input is an option of the conversation, a number below `flags`.
    """
    rest = b"\0\5\x7f\0\0\0"
    for flag in range(flags):
        for at in range(answers):
            for operation in range(1, len(conversation.OPERATIONS)):
                yield bytes((flag, *([0] * at), operation)) + rest
    yield bytes(range(12)) * 8


_TALK: Final = Budget(seconds=0.5, seconds_per_byte=5e-3)
_ANSWERS: Final = Budget(memory_per_byte=256)

TARGETS: Final = {
    each.name: each
    for each in (
        Target("frames", parsers.frames, _frames, 0.12),
        Target("answers", parsers.answer, _answers, 0.43, _ANSWERS),
        Target("versions", parsers.versions, _versions, 0.06, _ANSWERS),
        Target("batches", parsers.batch, _batches, 0.16, _ANSWERS),
        Target("codecs", parsers.codec, _codecs, 0.05, longest=1 << 14),
        Target("scram", parsers.scram_server, _scram, 0.02),
        Target("sasl", parsers.sasl, _sasl, 0.04),
        Target("jaas", parsers.jaas, _jaas, 0.036),
        Target("values", topic_values.topic_values, topic_values.values, 0.04),
        Target("token", token_endpoint.token_endpoint, token_endpoint.answers, 0.015),
        Target("files", cli_files.cli_files, cli_files.files, 0.015),
        Target("connection", conversation.connection, partial(_scripts, 3, 2), 0.012, _TALK, 512),
        Target("producer", conversation.producer, partial(_scripts, 6, 2), 0.002, _TALK, 512),
    )
}


def kept(name: str) -> list[bytes]:
    """Return the corpus of a target."""
    path = CORPUS / f"{name}.txt"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return [base64.b64decode(line) for line in lines if line and not line.startswith("#")]


def seeds(target: Target) -> list[bytes]:
    """Return all inputs that a run starts with."""
    return list(dict.fromkeys([*target.seeds(), *kept(target.name)]))
