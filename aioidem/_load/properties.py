"""Read a command's client properties from its flags, from a file, and from the environment.

Every user of the machine can read a command line while the command runs, passwords included. So
properties may be in a file in Java's format (`--command-config`), and a value may be a reference:
`sasl.password=env:NAME` takes it from the environment, `sasl.password=file:PATH` from a file.

Invariants: a flag overrides the file, as in Kafka's own tools. No message shows a value or a
malformed line of the file: either may be a password. A secret that other users can read is used,
with a warning.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

from aioidem._config import ProducerConfig
from aioidem._config.named_values import NamedValueError, is_named, look_up
from aioidem._load.usage import UsageError, one_line, reason
from aioidem._network.sasl.client import sasl_client
from aioidem._network.tls import secured
from aioidem._network.transport import TcpConnector
from aioidem.errors import ConfigError

__all__ = [
    "Properties",
    "gather_properties",
    "load_files",
    "parse_properties",
    "refuse_misplaced_secrets",
    "spread_values",
    "without_secrets",
    "without_values",
]

_FLAGS: Final = ("--producer-props", "--command-property", "--consumer-props", "--spark-conf")
_SECRET: Final = re.compile(r"password|secret|jaas\.config$|keystore\.key$", re.IGNORECASE)
# The names of Kafka's properties contain a dot, except for these two of the producer.
_NAME: Final = re.compile(r"acks|retries|[\w-]+(\.[\w-]+)+", re.ASCII)
_MARK: Final = b"\xef\xbb\xbf"
_MAX_FILE: Final = 1 << 20


class Properties(NamedTuple):
    """The properties from a command's flag and file, with references replaced by their values.

    A reference is `env:NAME` or `file:PATH`.

    Attributes:
        values: the properties by their Java names. They may be passwords: never print them.
        warnings: one line for each place where other users of this machine can read a secret.
    """

    values: Mapping[str, str]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Properties({', '.join(self.values)})"


def gather_properties(
    items: Sequence[str] = (), file: Path | None = None, *, flag: str = "--producer-props"
) -> Properties:
    """Read properties from a file and a flag, and look up the values that are references.

    The flag overrides the file. A reference is `env:NAME` or `file:PATH`.

    Args:
        items: `name=value`, as given with the flag.
        file: a file in Java's properties format, or None.
        flag: the flag's name, for messages.

    Raises:
        UsageError: an item or the file is malformed, or a referenced value does not exist.
    """
    given = parse_properties(items, flag)
    warnings = [_exposed(flag, name) for name, value in given.items() if _is_plain(name, value)]
    values = {} if file is None else _read_file(file)
    if file is not None and any(_is_plain(name, value) for name, value in values.items()):
        warnings += _open_to_others("--command-config", file)
    values |= given
    for name, value in values.items():
        if _SECRET.search(name) and value.startswith("file:"):
            warnings += _open_to_others(name, Path(value.removeprefix("file:")))
    return Properties({name: _look_up(name, text) for name, text in values.items()}, (*warnings,))


def load_files(config: ProducerConfig) -> None:
    """Load the files that the options of TLS and SASL name, as each connection will.

    Raises:
        UsageError: a file cannot be read, or does not contain what the option needs.
    """
    try:
        secured(TcpConnector(), config)
        sasl_client(config)
    except ConfigError as error:
        raise UsageError(one_line(error)) from error


def _read_file(path: Path) -> dict[str, str]:
    """Read a file as `java.util.Properties` does.

    Raises:
        UsageError: the file cannot be read, is larger than 1 MiB, or is malformed.
    """
    import javaproperties  # comes with the extra `cli`

    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"--command-config: {path}: {reason(error)}") from error
    if len(content) > _MAX_FILE:
        raise UsageError(f"--command-config: {path} is larger than {_MAX_FILE >> 20} MiB")
    values: dict[str, str] | None = None
    with suppress(ValueError):  # hides an error whose text quotes the file
        values = dict(javaproperties.load(BytesIO(content.removeprefix(_MARK))))
    if values is None:
        problem = "is no properties file: it has a broken \\u escape"
    elif not all(map(_NAME.fullmatch, values)):
        problem = "has a line that is not name=value"
    else:
        return values
    raise UsageError(f"--command-config: {path} {problem}")


def parse_properties(items: Iterable[str], flag: str = "--producer-props") -> dict[str, str]:
    """Parse `["a=1", "b=2"]` as a dictionary; a value may contain `=`.

    Raises:
        UsageError: an item is not `name=value`, or a name has two different values.
    """
    properties: dict[str, str] = {}
    for place, item in enumerate(items, 1):
        name, equals, value = item.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"{flag}: value {place} is not name=value")
        if properties.setdefault(name, value) != value:
            # The values are not shown: they may be passwords.
            raise UsageError(f"{flag}: {name} was given twice, with two values")
    return properties


def refuse_misplaced_secrets(argv: Sequence[str]) -> None:
    """Check that no secret follows a flag that takes no properties.

    A message about such a flag would quote its value, perhaps shortened, and a host or a file of
    that name would be looked for.

    Raises:
        UsageError: A secret follows another flag, or none.
    """
    flag = ""
    for word in argv:
        before, item = flag, word
        flag = ""
        if word.startswith("-"):
            flag, _, item = word.partition("=")
            before = flag
        name = item.partition("=")[0]
        given = len(name) < len(item) and _NAME.fullmatch(name) and _SECRET.search(name)
        if given and before not in _FLAGS:
            place = f"{before}: " if before else ""
            raise UsageError(
                f"{place}{name}=... is a property, and no value here: write it into the file of"
                " --command-config"
            )


def without_values(message: str, argv: Sequence[str]) -> str:
    """Replace property values from the command line by "..." in an option parser's message."""
    for word in argv:
        name, equals, value = word.partition("=")
        if value:
            message = message.replace(word, f"{name}{equals}...")
    return message


def without_secrets(message: str, argv: Sequence[str]) -> str:
    """Replace secrets from the command line by "..." in a message that quotes what was given.

    `refuse_misplaced_secrets` refuses those after another flag. One may still be in the value of
    another property (`--producer-props linger.ms=sasl.password=...`).
    """
    for word in argv:
        name, equals, value = word.removeprefix("--").partition("=")
        if not _SECRET.search(name):  # perhaps --flag=name=value
            name, equals, value = value.partition("=")
        if value and _SECRET.search(name):
            for quoted in (value, repr(value)[1:-1]):
                message = message.replace(f"{name}={quoted}", f"{name}{equals}...")
    return message


def spread_values(argv: Sequence[str], flags: Sequence[str] = _FLAGS) -> list[str]:
    """Repeat a flag before each of its values: `--f a=1 b=2` becomes `--f a=1 --f b=2`.

    Kafka's own tool allows several values after one flag, but option parsers in Python allow one,
    and refuse the others as stray arguments. A value that starts with a dash ends the list.
    """
    spread: list[str] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if word == "--":
            return [*spread, word, *argv[position:]]
        if word not in flags:
            spread.append(word)
            continue
        first = position
        while position < len(argv) and not argv[position].startswith("-"):
            spread += [word, argv[position]]
            position += 1
        if position == first:  # no value followed: leave it to the parser to refuse the flag
            spread.append(word)
    return spread


def _look_up(name: str, text: str) -> str:
    """Return the text itself, or for `env:NAME` and `file:PATH` the value that it refers to."""
    try:
        return look_up(text)
    except NamedValueError as error:
        raise UsageError(f"{name}: {error}") from error


def _is_plain(name: str, value: str) -> bool:
    """Return whether the property is a secret that is given in full, not as a reference."""
    return bool(value and _SECRET.search(name)) and not is_named(value)


def _exposed(flag: str, name: str) -> str:
    return (
        f"{flag} {name}: every user of this machine can read the command line; use"
        f" --command-config FILE, {name}=env:NAME or {name}=file:PATH"
    )


def _open_to_others(label: str, path: Path) -> list[str]:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return []
    if os.name != "posix" or not stat.S_IMODE(mode) & 0o077:
        return []
    return [f"{label} {path}: it holds a secret and others may read it; chmod 0600"]
