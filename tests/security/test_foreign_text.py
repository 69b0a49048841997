"""Text from a broker is escaped and shortened wherever it is shown.

The tests put hostile text into each string field, one at a time, of each answer that aioidem reads.
They check what aioidem then shows: logs, exceptions, statistics and reprs.
"""

from __future__ import annotations

import dataclasses
import logging
import typing
from collections.abc import Iterator
from types import UnionType
from typing import Any

import pytest

from aioidem import Producer
from aioidem._broker.intercept import Action, RequestSeen, Rewrite
from aioidem._cli.audit import example_lines
from aioidem._protocol.foreign_text import SHOWN, ForeignText, foreign_text
from aioidem._protocol.messages import decode_response, encode_response, response_type
from aioidem._protocol.versions import SPOKEN, ApiKey
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from aioidem.errors import KafkaError
from tests.hostile.conversation import in_virtual_time
from tests.hostile.samples import READ, filled

from .tools import sasl

FORGED = "x\r\n2026-01-01 ERROR aioidem: all data is lost\x1b[2J\x1b]0;title\x07\u202e\u2028"
HOSTILE = FORGED + "y" * 20_000
LONGEST_LINE = 1000


def check(text: str) -> None:
    assert text.isprintable(), f"raw in {text[:300]!r}"
    assert len(text) <= LONGEST_LINE, f"{len(text)} characters: {text[:100]!r}"


@pytest.mark.parametrize("text", ["plain", "caf\u00e9 \u4e2d", ""])
def test_plain_text_stays_a_plain_string(text: str) -> None:
    """Harmless text from a broker stays a plain `str`."""
    assert type(foreign_text(text)) is str


def test_hostile_text_is_shown_escaped_and_cut_and_compares_as_it_is() -> None:
    """Hostile text is shown escaped and shortened, but compares as the original."""
    text = foreign_text(HOSTILE)
    assert type(text) is ForeignText
    assert text == HOSTILE
    assert hash(text) == hash(HOSTILE)
    shown = [str(text), repr(text), f"{text}", f"{text!r}", f"{text:>4}"]
    shown += [repr([text]), repr({"x": text}), str(KafkaError(f"at {text}"))]
    for each in shown:
        check(each)
        assert "(20049 characters)" in each or "20" in each
        assert len(each) < SHOWN + 120


def strings_of(schema: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of a schema's fields of type string."""
    for field in dataclasses.fields(schema):
        kind = _item(field.type)
        if dataclasses.is_dataclass(kind):
            yield from strings_of(kind, (*path, field.name))
        elif field.metadata.get("kafka_type") == "string":
            yield (*path, field.name)


def _item(kind: Any) -> Any:
    """Return the type of a field, or of the items if the field is an array, without None."""
    while typing.get_origin(kind) is tuple or isinstance(kind, UnionType):
        kind = next(each for each in typing.get_args(kind) if each is not type(None))
    return kind


def spoilt(entity: Any, path: tuple[str, ...]) -> Any:
    """Copy an entity with hostile text at a path, in every item of the arrays on the way."""
    name, rest = path[0], path[1:]
    value = getattr(entity, name)
    if not rest:
        new: Any = (HOSTILE,) if isinstance(value, tuple) else HOSTILE
    elif isinstance(value, tuple):
        new = tuple(spoilt(each, rest) for each in value)
    else:
        new = value if value is None else spoilt(value, rest)
    return dataclasses.replace(entity, **{name: new})


def every_string() -> list[Any]:
    found = []
    for api_key, version in READ:
        schema = response_type(api_key, version)
        if schema is not None:
            for path in strings_of(schema):
                name = f"{ApiKey(api_key).name} v{version} {'.'.join(path)}"
                found.append(pytest.param(api_key, version, path, id=name))
    return found


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from texts_in(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from texts_in(getattr(value, field.name))


@pytest.mark.parametrize(("api_key", "version", "path"), every_string())
def test_every_string_of_every_answer_is_made_harmless_where_it_is_read(
    api_key: int, version: int, path: tuple[str, ...]
) -> None:
    """Decoding makes every string field of every answer safe to show."""
    schema: Any = response_type(api_key, version)
    text = HOSTILE[:30_000]
    frame = encode_response(spoilt(filled(schema), path), correlation_id=1)
    _, answer = decode_response(schema, frame[4:])
    hostile = [each for each in texts_in(answer) if each == text]
    assert hostile, "the text did not arrive"
    check(repr(answer)[:LONGEST_LINE])
    for each in hostile:
        check(str(each))
    assert "\x1b" not in repr(answer)


class Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def newest(api_key: int) -> tuple[int, int]:
    versions = [version for key, version in READ if key == api_key]
    return api_key, max(versions)


def met_by_a_producer() -> list[Any]:
    """Return the string fields of the answers to a producer, in each API's newest version."""
    asked = set(SPOKEN) - {ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.CREATE_TOPICS}
    asked -= {ApiKey.DELETE_TOPICS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.DESCRIBE_CLUSTER}
    asked -= {ApiKey.OFFSET_FETCH, ApiKey.LIST_TRANSACTIONS}
    wanted = [newest(api_key) for api_key in sorted(asked)]
    return [each for each in every_string() if (each.values[0], each.values[1]) in wanted]


@pytest.mark.parametrize("failing", [False, True], ids=["well", "failing"])
@pytest.mark.parametrize(("api_key", "version", "path"), met_by_a_producer())
def test_nothing_a_producer_says_shows_it_raw(
    api_key: int, version: int, path: tuple[str, ...], failing: bool
) -> None:
    """A producer escapes every text of a broker in its output, also if the answer is an error."""
    said: list[str] = []
    log = Log()
    logger = logging.getLogger("aioidem")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(log)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False  # keeps the lines out of pytest's own log capture

    def rewrite(answer: Any) -> Any:
        if type(answer).__version__ != version and path[0] not in vars_of(answer):
            return answer
        if failing and any(field.name == "error_code" for field in dataclasses.fields(answer)):
            answer = dataclasses.replace(answer, error_code=type(answer.error_code)(29))
        return spoilt(answer, path)

    def intercept(seen: RequestSeen) -> Action | None:
        return Rewrite(rewrite) if seen.api_key == api_key else None

    try:
        in_virtual_time(lambda: live(intercept, said))
    finally:
        logger.removeHandler(log)
        logger.setLevel(level)
        logger.propagate = propagate
    assert log.lines
    for text in [*log.lines, *said]:
        check(text)


def vars_of(entity: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(entity)}


async def live(intercept: Any, said: list[str]) -> None:
    """Run a transaction and a plain record against brokers that require SASL."""
    security = BrokerSecurity(mechanisms=("PLAIN",), users={"me": "pw"})
    options = {**sasl("PLAIN", sasl_username="me", sasl_password="pw")}
    options |= {"max_block": 2.0, "delivery_timeout": 4.0, "request_timeout": 2.0}
    async with EmbeddedCluster(transport="memory", security=security, seed=1) as cluster:
        cluster.create_topic("t", partitions=1)
        cluster.intercept(intercept)
        for transactional_id in (None, "id"):
            sender = Producer(
                cluster.bootstrap_servers,
                connector=cluster.connector,
                transactional_id=transactional_id,
                **options,
            )
            try:
                await sender.start()
                if transactional_id is None:
                    await sender.send("t", b"x")
                else:
                    async with sender.transaction():
                        await sender.send("t", b"x")
            except KafkaError as error:
                links = [error, error.__cause__, error.__context__]
                said += [str(each) for each in links if each is not None]
                said += [repr(each) for each in links if each is not None]
            finally:
                for part in dataclasses.astuple(sender.statistics()):
                    said.append(repr(part)[:LONGEST_LINE])
                await sender.close(1.0)


def test_producers_that_an_audit_names_are_escaped() -> None:
    """An audit escapes producers' names, which come from records that anybody may have written."""
    found = {"examples": {"lost": [f"{FORGED}: 3", "p: 4"], "doubled": [HOSTILE]}}
    for line in example_lines(found):
        check(line)
