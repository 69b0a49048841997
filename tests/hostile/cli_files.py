"""Fuzz target: the files that a command reads, from the command line to its output.

The first byte of an input selects the file, and the rest is the file's content, in which each `$`
stands for a secret. The command line is parsed and checked as usual, but nothing is sent. The run
must end with a plan (the parsed options) that does not show the secret, or with status 2 and lines
that are safe for a terminal.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import javaproperties
import typer.main

from aioidem._cli.app import run
from aioidem._config import ProducerConfig
from aioidem._network.sasl.client import sasl_client
from aioidem._network.tls import secured
from aioidem._network.transport import TcpConnector

from .parsers import check_text, declared

__all__ = ["cli_files", "files"]

_SECRET: Final = "c4n4rySecret"
_NO_AUTHORITIES: Final = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
"""Environment variables that hide the system's certificate authorities from the library `ssl`.

Loading the authorities would take ten times as long as running an input.
"""
_VARIABLE: Final = "AIOIDEM_FUZZED"
_PERF: Final = ("perf", "--bootstrap-server", "h:1", "--num-records", "1", "--topic", "t")
_SECURE: Final = ("security.protocol=SASL_SSL", "sasl.username=me")


_parser: Final = functools.cache(typer.main.get_command)
"""Makes the command-line parser, once: making it takes ten times as long as parsing with it."""


class _Command(NamedTuple):
    """A command line, and whether its output must hide the secret."""

    words: Sequence[str]
    hides: bool


@functools.cache
def _folder() -> Path:
    """Make a folder for this process, which is removed at exit."""
    folder = tempfile.TemporaryDirectory(prefix="fuzzed-files-")
    _KEEP.append(folder)
    return Path(folder.name)


_KEEP: Final[list[object]] = []


def cli_files(data: bytes) -> None:
    """Run a command with its file, and check its status, its output and its plan."""
    if not data:
        return
    content = data[1:].replace(b"$", _SECRET.encode())
    path = _folder() / "file"
    path.write_bytes(content)
    path.chmod(0o600 if data[0] & 0x80 else 0o644)
    command = _COMMANDS[data[0] % len(_COMMANDS)](path, content)
    planned: list[Any] = []
    said = io.StringIO()

    def keep(plan: Any) -> int:
        planned.append(plan)
        return 0

    with (
        mock.patch.dict(os.environ, {_VARIABLE: _SECRET, **_NO_AUTHORITIES}),
        mock.patch("typer.main.get_command", _parser),
        mock.patch("aioidem._load.perf.perf", side_effect=keep),
        mock.patch("aioidem._cli.audit.audit", side_effect=keep),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        status = run(list(command.words))
        if planned and "perf" in command.words:
            _authenticate(planned[0].config(1, "h:1"))
    assert status == (0 if planned else 2), f"status {status}"
    lines = [*said.getvalue().split("\n"), *map(repr, planned)]
    for line in lines[: len(lines) - len(planned)]:
        check_text(line)
    for line in lines:
        assert not (command.hides and _SECRET in line), "a secret is shown"


def _authenticate(config: ProducerConfig) -> None:
    """Begin to authenticate with the file's secrets: only documented errors may be raised."""
    with declared():
        secured(TcpConnector(), config)
    client = sasl_client(config)
    if client is not None and client.name in {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}:
        with declared():
            _now(client.mechanism("h")).first()


def _now(coroutine: Any) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


# --- the files ------------------------------------------------------------------------------------


def _config_of_perf(path: Path, content: bytes) -> _Command:
    return _Command((*_PERF, "--command-config", str(path)), _hidden(content))


def _config_of_audit(path: Path, content: bytes) -> _Command:
    audit = ("audit", "--ledger", str(_folder()), "--bootstrap-server", "h:1", "--topic", "t")
    return _Command((*audit, "--command-config", str(path)), _hidden(content))


def _password(path: Path, content: bytes) -> _Command:
    mechanism = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")[len(content) % 3]
    properties = (*_SECURE, f"sasl.mechanism={mechanism}", f"sasl.password=file:{path}")
    return _Command((*_PERF, "--producer-props", *properties), hides=True)


def _login(path: Path, _content: bytes) -> _Command:
    properties = (_SECURE[0], "sasl.mechanism=PLAIN", f"sasl.jaas.config=file:{path}")
    return _Command((*_PERF, "--producer-props", *properties), hides=True)


def _key(path: Path, _content: bytes) -> _Command:
    properties = ("security.protocol=SSL", f"ssl.truststore.certificates=file:{path}")
    return _Command((*_PERF, "--producer-props", *properties), hides=True)


def _payload(path: Path, content: bytes) -> _Command:
    delimiter = content[:2].decode("latin-1").replace("\0", "").lstrip("-")
    words = ("--payload-file", str(path), f"--payload-delimiter={delimiter}")
    return _Command((*_PERF, *words), hides=delimiter not in _SECRET)


def _flag(_path: Path, content: bytes) -> _Command:
    words = content.replace(b"\0", b"").decode("utf-8", "surrogateescape").split("\n")
    items = [word for word in words if not word.startswith("-")]
    pairs = [item.partition("=") for item in items]
    values = {name: value for name, _, value in pairs}
    hides = _only_in_secrets(values, [f"{pair}" for pair in pairs])
    return _Command((*_PERF, "--producer-props", *items), hides)


_COMMANDS: Final[tuple[Callable[[Path, bytes], _Command], ...]] = (
    _config_of_perf,
    _config_of_audit,
    _password,
    _login,
    _key,
    _payload,
    _flag,
)
_SECRETS: Final = frozenset(
    {
        "sasl.password",
        "sasl.jaas.config",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.key.password",
        "ssl.keystore.key",
    }
)


def _hidden(content: bytes) -> bool:
    """Return whether the secret is in a properties file only as the value of a secret property."""
    try:
        pairs = list(javaproperties.load(BytesIO(content), object_pairs_hook=list))
    except ValueError:
        return True
    return _only_in_secrets(dict(pairs), [f"{pair}" for pair in pairs])


def _only_in_secrets(values: Mapping[str, str], all_of_them: Sequence[str]) -> bool:
    shown = [each for each in all_of_them if _SECRET in each]
    hidden = [
        name
        for name, value in values.items()
        if name in _SECRETS and _SECRET in value and not value.startswith(("env:", "file:"))
    ]
    return len(shown) == len(hidden) and not any(_SECRET in name for name in values)


# --- seeds: the inputs that a run begins with -----------------------------------------------------

_PROPERTIES: Final = (
    b"# a comment\nlinger.ms = 5\nclient.id: caf\\u00e9\n",
    b"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=me\nsasl.password=$\n",
    (
        b"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=me\n"
        b"sasl.password=env:AIOIDEM_FUZZED\n"
    ),
    b"sasl.password=env:NONE\n",
    b"sasl.password=env:\\ud800\n",
    b"sasl.password=file:\\u0000\n",
    b"sasl.password=file:nowhere/\\u001b[2J\n",
    b"sasl.password=file:\\ud800\n",
    b"sasl.password=$\\u00",
    (
        b"sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        b'  username="me" password="$";\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n'
    ),
    (
        b"security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
        b"sasl.oauthbearer.token.endpoint.url=https://h/t\n"
        b"sasl.oauthbearer.client.credentials.client.id=me\n"
        b"sasl.oauthbearer.client.credentials.client.secret=$\n"
    ),
    b"security.protocol=SSL\nssl.truststore.location=/none/\\u0000\nssl.key.password=$\n",
    b"security.protocol=SSL\nssl.keystore.key=$\nssl.keystore.certificate.chain=c\n",
    b"bootstrap.servers=\\u001b[2J\ntransactional.id=t\nacks=\\u0007\n",
    b"acks=1\nacks=all\nmax.in.flight.requests.per.connection=5,\\u202e\n",
    b"password.of.\\u001b[2J=$\n",
    b"compression.type=zstd\ncompression.zstd.level=99\n" + b"x" * 400 + b"=1\n",
)
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----\nMII$\n-----END CERTIFICATE-----\n"


def files() -> Iterator[bytes]:
    """Yield each file with legal and with illegal content."""
    for mode in (0x80 // len(_COMMANDS) * len(_COMMANDS) + len(_COMMANDS), 0):
        for each in _PROPERTIES:
            yield bytes((mode,)) + each
            yield bytes((mode + 1,)) + each
    for password in (b"$", b"$\r\n", b"$\0", b"", b"\xff$", "$é\u2168".encode(), b"$\x1b[2J\x07"):
        yield b"\2" + password
        yield b"\2" + password + b" "
        yield b"\2" + password + b"  "
    yield b'\3PlainLoginModule required username=me password="$";'
    yield b"\3Krb5LoginModule required $;"
    yield b"\3NoModule required password=$;"
    yield b"\4" + _CERTIFICATE
    yield b"\4" + _CERTIFICATE * 2 + b"\x1b"
    for payload in (b"\n\n", b"a$a$a", b"\\nx\\n$", b"", b"\0\0\0"):
        yield b"\5" + payload
    for mode in (6, 6 + len(_COMMANDS)):
        for each in _PROPERTIES:
            yield bytes((mode,)) + each.replace(b" = ", b"=").replace(b": ", b"=")
    yield b"\6sasl.password=\xff$\nacks=\x1b[2J"
    yield b"\6\x1b[2J\nlinger.ms=5\nlinger.ms=6"
