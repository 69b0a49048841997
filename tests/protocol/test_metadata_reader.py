"""The hand-written Metadata reader agrees with the schema's decoder, and limits its input."""

from __future__ import annotations

import random
import secrets
from collections.abc import Container
from contextlib import suppress
from typing import Any

import pytest

from aioidem._protocol.codec import MAX_ITEMS
from aioidem._protocol.messages import decode_response, encode_response, response_type
from aioidem._protocol.metadata import MetadataUpdate, metadata_update
from aioidem._protocol.metadata_reader import MAX_BROKERS, read_metadata
from aioidem.errors import InternalError, ProtocolError
from tests.hostile.samples import filled

VERSIONS = range(4, 14)


class Everything(Container[str]):
    """A container that contains every topic."""

    def __contains__(self, _name: object) -> bool:
        return True


def answer(version: int, *, topics: int = 2, partitions: int = 3, brokers: int = 2) -> bytes:
    """Return a Metadata answer without its length prefix; its topics are t0, t1 and so on."""
    schema: Any = response_type(3, version)
    module = __import__(schema.__module__, fromlist=["MetadataResponseTopic"])
    parts = tuple(
        filled(module.MetadataResponsePartition, partition_index=index, replica_nodes=(1,) * index)
        for index in range(partitions)
    )
    made = filled(
        schema,
        brokers=tuple(
            filled(module.MetadataResponseBroker, node_id=node) for node in range(brokers)
        ),
        topics=tuple(
            filled(module.MetadataResponseTopic, name=f"t{number}", partitions=parts)
            for number in range(topics)
        ),
    )
    return encode_response(made, 7)[4:]


def by_schema(version: int, frame: bytes) -> MetadataUpdate:
    schema: Any = response_type(3, version)
    return metadata_update(decode_response(schema, frame)[1])


@pytest.mark.parametrize("version", VERSIONS)
def test_it_reads_what_the_schemas_reader_reads(version: int) -> None:
    """`read_metadata` returns what the schema's decoder returns, in every version."""
    for frame in (answer(version), answer(version, topics=0, brokers=0)):
        read = read_metadata(version, frame, Everything())
        assert read == by_schema(version, frame)
    [one] = read_metadata(version, answer(version), ["t1"]).topics
    assert (one.name, len(one.partitions)) == ("t1", 3)


@pytest.mark.parametrize("version", VERSIONS)
def test_on_spoilt_bytes_both_say_the_same(version: int) -> None:
    """`read_metadata` reads or refuses a damaged answer as the schema's decoder does."""
    seed = secrets.randbelow(2**32)
    chance = random.Random(seed)
    honest = answer(version)
    refused = 0
    for _ in range(1500):
        raw = bytearray(honest)
        for _ in range(chance.randint(1, 3)):
            other = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            raw[chance.randrange(4, len(raw))] = other
        cut = bytes(raw[: chance.randrange(4, len(raw))] if chance.random() < 0.1 else raw)
        expected = found = None
        try:
            expected = by_schema(version, cut)
        except ProtocolError:
            refused += 1
        with suppress(ProtocolError):
            found = read_metadata(version, cut, Everything())
        assert found == expected, f"seed {seed}: {cut.hex()}"
    assert 0 < refused < 1500


@pytest.mark.parametrize("version", VERSIONS)
def test_topics_that_were_not_asked_for_are_skipped(version: int) -> None:
    """`read_metadata` skips topics that were not asked for."""
    frame = answer(version, topics=50)
    assert [topic.name for topic in read_metadata(version, frame, {"t7"}).topics] == ["t7"]
    assert not read_metadata(version, frame, ()).topics


def test_topics_partitions_and_brokers_together_have_one_bound() -> None:
    """All topics, partitions and brokers together have one limit, whether asked for or skipped."""
    count = MAX_ITEMS // 3
    part = bytes(14) + b"\1\1\1\0"
    topic = b"\0\0" + b"\2t" + bytes(17) + _uvarint(count + 1) + part * count + bytes(5)

    def frame(topics: int) -> bytes:
        return bytes(9) + b"\1\0" + bytes(4) + _uvarint(topics + 1) + topic * topics + b"\0"

    assert not read_metadata(12, frame(1), ()).topics
    with pytest.raises(ProtocolError, match=f"a message may have {MAX_ITEMS} in all"):
        read_metadata(12, frame(4), ())


def test_tagged_fields_count_as_items() -> None:
    """Tagged fields count as items, because skipping 16 MiB of empty ones takes five seconds."""
    start = bytes(9) + b"\1\0" + bytes(4) + b"\1"
    for tags, fits in ((MAX_ITEMS, True), (MAX_ITEMS + 1, False)):
        frame = start + _uvarint(tags) + b"\x63\0" * tags
        if fits:
            assert not read_metadata(12, frame, ()).topics
            continue
        with pytest.raises(ProtocolError, match=f"a message may have {MAX_ITEMS} in all"):
            read_metadata(12, frame, ())


def test_more_brokers_than_any_cluster_has_are_refused() -> None:
    assert len(read_metadata(12, answer(12, brokers=MAX_BROKERS), ()).brokers) == MAX_BROKERS
    with pytest.raises(ProtocolError, match=f"{MAX_BROKERS + 1} brokers"):
        read_metadata(12, answer(12, brokers=MAX_BROKERS + 1), ())


def test_versions_that_aioidem_does_not_speak_are_an_internal_error() -> None:
    """Metadata versions that aioidem does not speak raise InternalError."""
    for version in (3, 14):
        with pytest.raises(InternalError, match=f"no Metadata version {version}"):
            read_metadata(version, answer(12), ())


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
