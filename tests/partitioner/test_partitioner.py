"""The partitioner chooses the same partition for a key as Java's producer and aiokafka."""

from __future__ import annotations

import random

import pytest
from aiokafka.partitioner import DefaultPartitioner as AiokafkaPartitioner
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from aioidem.partitioner import DefaultPartitioner, Partitioner, murmur2

_PARTITIONS = st.lists(st.integers(0, 10_000), min_size=1, max_size=50, unique=True).map(sorted)


@pytest.mark.parametrize(
    ("key", "java"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_javas_values(key: bytes, java: int) -> None:
    assert murmur2(key) == java


@given(st.binary(max_size=300))
def test_murmur2_is_aiokafkas_as_a_signed_int(key: bytes) -> None:
    assert murmur2(key) & 0xFFFFFFFF == aiokafka_murmur2(key)
    assert -(2**31) <= murmur2(key) < 2**31


@given(st.binary(max_size=50), _PARTITIONS)
def test_a_key_goes_where_aiokafka_sends_it(key: bytes, partitions: list[int]) -> None:
    assert DefaultPartitioner()(key, partitions, partitions) == AiokafkaPartitioner()(
        key, partitions, partitions
    )


@given(st.binary(max_size=50), _PARTITIONS, st.data())
def test_a_key_does_not_move_when_partitions_are_unavailable(
    key: bytes, partitions: list[int], data: st.DataObject
) -> None:
    """A key's partition does not depend on which partitions are available."""
    available = data.draw(st.lists(st.sampled_from(partitions), unique=True))
    partitioner: Partitioner = DefaultPartitioner()
    assert partitioner(key, partitions, available) == partitioner(key, partitions, partitions)


@given(_PARTITIONS, st.data())
def test_without_a_key_only_available_partitions_are_chosen_if_there_are_any(
    partitions: list[int], data: st.DataObject
) -> None:
    available = data.draw(st.lists(st.sampled_from(partitions), unique=True))
    assert DefaultPartitioner()(None, partitions, available) in (available or partitions)


def test_without_a_key_every_available_partition_gets_its_turn() -> None:
    """Records without a key reach every available partition."""
    random.seed(1)
    chosen = {DefaultPartitioner()(None, range(10), [2, 4, 8]) for _ in range(200)}
    assert chosen == {2, 4, 8}


def test_an_empty_key_is_a_key() -> None:
    """An empty key is a key, and always selects the same partition."""
    assert len({DefaultPartitioner()(b"", range(1000), range(1000)) for _ in range(20)}) == 1
