"""Every field of a transaction's requests and answers survives encoding and decoding."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.entities import respond
from aioidem._protocol.add_offsets import add_offsets_answer, add_offsets_request
from aioidem._protocol.add_partitions import add_partitions_answer, add_partitions_request
from aioidem._protocol.end_txn import end_txn_answer, end_txn_request
from aioidem._protocol.find_coordinator import (
    CoordinatorKey,
    coordinator_answer,
    coordinator_request,
)
from aioidem._protocol.messages import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from aioidem._protocol.producer_id import (
    TransactionalIdentity,
    producer_id_request,
    transactional_producer_id_request,
)
from aioidem._protocol.txn_offset_commit import (
    GroupMember,
    TxnOffset,
    txn_offset_commit_answer,
    txn_offset_commit_request,
)
from aioidem._protocol.versions import SPOKEN, ApiVersionTable
from aioidem.errors import InternalError

WHO = TransactionalIdentity("tx", 7, 3)
THROTTLE = timedelta(milliseconds=5)


def spoken(api_key: int) -> range:
    first, last = SPOKEN[api_key]
    return range(first, last + 1)


def sent(request: Any) -> Any:
    """Encode a request, and decode it as a broker does."""
    return decode_request(encode_request(request, correlation_id=1, client_id="c")[4:])[1]


def answered(api_key: int, version: int, values: dict[str, Any]) -> Any:
    """Encode an answer, and decode it as the client does."""
    response = respond(api_key, version, {"throttle_time": THROTTLE, **values})
    return decode_response(type(response), encode_response(response, 1)[4:])[1]


# -- FindCoordinator -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", spoken(10))
def test_a_coordinator_is_asked_for_and_found(version: int) -> None:
    """FindCoordinator requests and answers keep their fields in every version."""
    kind = CoordinatorKey.TRANSACTION if version else CoordinatorKey.GROUP
    request = sent(coordinator_request(version, "tx", kind))
    assert getattr(request, "key_type", 0) == kind
    assert getattr(request, "coordinator_keys", None) == ("tx",) or request.key == "tx"
    found = {
        "key": "tx",
        "error_code": ErrorCode.none,
        "error_message": None,
        "node_id": 4,
        "host": "h",
        "port": 9,
    }
    answer = coordinator_answer(answered(10, version, {**found, "coordinators": [found]}), "tx")
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (
        ErrorCode.none,
        4,
        "h",
        9,
    )
    assert answer.throttle_ms == (5 if version else 0)


def test_an_answer_without_the_key_is_an_error() -> None:
    answer = coordinator_answer(answered(10, 4, {"coordinators": []}), "tx")
    assert (answer.error_code, answer.node_id) == (ErrorCode.unknown_server_error, -1)


def test_the_oldest_version_finds_no_coordinator_of_transactions() -> None:
    with pytest.raises(InternalError):
        coordinator_request(0, "tx", CoordinatorKey.TRANSACTION)


# -- InitProducerId --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", spoken(22))
def test_a_transactional_producer_id_is_asked_for(version: int) -> None:
    """The first InitProducerId has transactional id, timeout, and -1 as producer id and epoch."""
    request = sent(transactional_producer_id_request(version, "tx", 30_000))
    assert (request.transactional_id, request.transaction_timeout) == ("tx", timedelta(seconds=30))
    assert (getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)) == (-1, -1)


@pytest.mark.parametrize("version", spoken(22))
def test_the_identity_a_producer_has_is_named_from_v3_on(version: int) -> None:
    """InitProducerId has the producer's current id and epoch from v3 on (KIP-360)."""
    request = sent(transactional_producer_id_request(version, "tx", 1, WHO))
    named = getattr(request, "producer_id", None), getattr(request, "producer_epoch", None)
    assert named == ((7, 3) if version >= 3 else (None, None))


def test_a_plain_producer_names_nothing() -> None:
    """InitProducerId of a producer without transactions has -1 as producer id and epoch."""
    request = sent(producer_id_request(5))
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == (None, -1, -1)


# -- AddPartitionsToTxn, AddOffsetsToTxn -----------------------------------------------------------


@pytest.mark.parametrize("version", spoken(24))
def test_partitions_are_added_by_topic(version: int) -> None:
    request = sent(add_partitions_request(version, WHO, [("a", 0), ("b", 2), ("a", 1)]))
    assert request.v3_and_below_transactional_id == "tx"
    assert (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch) == (7, 3)
    assert {t.name: t.partitions for t in request.v3_and_below_topics} == {"a": (0, 1), "b": (2,)}
    part = {"partition_index": 1, "partition_error_code": ErrorCode.concurrent_transactions}
    results = [{"name": "a", "results_by_partition": [part]}]
    answer = add_partitions_answer(
        answered(24, version, {"results_by_topic_v3_and_below": results})
    )
    assert (answer.error_codes, answer.throttle_ms) == (
        {("a", 1): ErrorCode.concurrent_transactions},
        5,
    )


def test_versions_of_brokers_among_themselves_are_not_spoken() -> None:
    """A request for AddPartitionsToTxn v4, which only brokers send, raises InternalError."""
    with pytest.raises(InternalError):
        add_partitions_request(4, WHO, [("a", 0)])


@pytest.mark.parametrize("version", spoken(25))
def test_a_group_is_added(version: int) -> None:
    request = sent(add_offsets_request(version, WHO, "g"))
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("tx", 7, 3)
    assert request.group_id == "g"
    answer = add_offsets_answer(answered(25, version, {"error_code": ErrorCode.not_coordinator}))
    assert (answer.error_code, answer.throttle_ms) == (ErrorCode.not_coordinator, 5)


# -- TxnOffsetCommit -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", spoken(28))
def test_offsets_are_committed_with_the_consumers_place_in_its_group(version: int) -> None:
    group = GroupMember("g", 4, "m", "i")
    offsets = {("a", 0): TxnOffset(10, 2, "note"), ("a", 1): TxnOffset(11)}
    request = sent(txn_offset_commit_request(version, WHO, group, offsets))
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("tx", 7, 3)
    [topic] = request.topics
    parts = {p.partition_index: p for p in topic.partitions}
    assert (parts[0].committed_offset, parts[0].committed_metadata) == (10, "note")
    assert (parts[1].committed_offset, parts[1].committed_metadata) == (11, "")
    assert getattr(parts[0], "committed_leader_epoch", None) == (2 if version >= 2 else None)
    assert getattr(request, "generation_id", None) == (4 if version >= 3 else None)
    assert getattr(request, "member_id", None) == ("m" if version >= 3 else None)
    assert getattr(request, "group_instance_id", None) == ("i" if version >= 3 else None)
    part = {"partition_index": 1, "error_code": ErrorCode.illegal_generation}
    topics = [{"name": "a", "partitions": [part]}]
    answer = txn_offset_commit_answer(answered(28, version, {"topics": topics}))
    assert (answer.error_codes, answer.throttle_ms) == ({("a", 1): ErrorCode.illegal_generation}, 5)


# -- EndTxn ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", spoken(26))
def test_the_end_says_what_to_go_on_with_from_v5_on(version: int, commit: bool) -> None:
    """EndTxn answers carry the next producer id and epoch from v5 on (KIP-890)."""
    request = sent(end_txn_request(version, WHO, commit=commit))
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("tx", 7, 3)
    assert request.committed is commit
    values = {"error_code": ErrorCode.none, "producer_id": 7, "producer_epoch": 4}
    answer = end_txn_answer(answered(26, version, values))
    assert (answer.error_code, answer.throttle_ms) == (ErrorCode.none, 5)
    assert (answer.producer_id, answer.producer_epoch) == ((7, 4) if version >= 5 else (-1, -1))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: coordinator_request(99, "tx", CoordinatorKey.TRANSACTION),
        lambda: transactional_producer_id_request(99, "tx", 1),
        lambda: add_partitions_request(99, WHO, []),
        lambda: add_offsets_request(99, WHO, "g"),
        lambda: txn_offset_commit_request(99, WHO, GroupMember("g"), {}),
        lambda: end_txn_request(99, WHO, commit=True),
    ],
)
def test_a_request_in_an_unknown_version_is_an_internal_error(ask: Any) -> None:
    """Making a request in a version that does not exist raises InternalError."""
    with pytest.raises(InternalError):
        ask()


# -- which protocol a broker offers ----------------------------------------------------------------

MODERN = {0: (0, 13), 26: (0, 5), 28: (0, 5)}


@pytest.mark.parametrize(
    ("offered", "level", "expected"),
    [
        (MODERN, 2, 2),
        (MODERN, 1, 1),
        (MODERN, 0, 0),
        (MODERN, None, 0),
        (MODERN | {0: (0, 11)}, 2, 1),
        (MODERN | {26: (0, 4)}, 2, 1),
        (MODERN | {28: (0, 4)}, 2, 1),
    ],
)
def test_transactions_v2_are_a_finalised_feature_and_the_requests_for_it(
    offered: dict[int, tuple[int, int]], level: int | None, expected: int
) -> None:
    """Transactions v2 need level 2 of `transaction.version`, and KIP-890's request versions."""
    features = {} if level is None else {"transaction.version": level}
    assert ApiVersionTable(offered, features).transaction_version == expected
