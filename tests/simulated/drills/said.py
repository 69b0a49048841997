"""The drill of errors: what a refusal says, to whom it belongs, and what to do about it.

What an error advises follows from what Kafka means by its code: which right is missing, which
option of the topic or of the client is at fault. The exact prose is not judged. An error must be of
the code's class, name the partition, the broker and the numbers, and have the advice of its code
and no other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

from kio.schema.errors import ErrorCode as Code

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.batch import Attempt, LogEnd
from aioidem._engine.coordinator import Coordinator
from aioidem._engine.coordinator_refusals import coordinator_error
from aioidem._engine.discovery import Discovery
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.incident_of import incident_of
from aioidem._engine.links import Link
from aioidem._engine.outcome_error import outcome_error
from aioidem._engine.partition import PartitionState
from aioidem._engine.refusals import culprits, refusal_error, too_large
from aioidem._engine.retention import BrokerMemory, Disproof
from aioidem._engine.steps import ReadBack, SendProduce
from aioidem._engine.window_reason import window_reason
from aioidem._engine.windows import PartitionWindow
from aioidem._protocol.find_coordinator import CoordinatorKey
from aioidem._protocol.produce import PartitionAnswer
from aioidem.incident import Acknowledged, Incident
from aioidem.structs import DeliveryStatus, TopicPartition

from .made_batches import made_batch

__all__ = ["drill_said"]

_WHERE: Final = "t-3"
_BROKER: Final = "broker 5 (h5:9092)"
_ELSE: Final = "The log of that broker may say more"
"""What is advised after any other code."""
_ABOUT_PRODUCE: Final[Mapping[str, set[int]]] = {
    "WRITE on the topic": {Code.topic_authorization_failed},
    "IDEMPOTENT_WRITE on the cluster": {Code.cluster_authorization_failed},
    "WRITE on the transactional id": {Code.transactional_id_authorization_failed},
    "message.timestamp.before.max.ms": {Code.invalid_timestamp},
    "every record has a key": {Code.invalid_record},
    "compression_type": {Code.unsupported_compression_type},
    "message.format.version": {Code.unsupported_for_message_format},
    "min.insync.replicas": {Code.not_enough_replicas, Code.not_enough_replicas_after_append},
    "the disks": {Code.kafka_storage_error},
    "policy": {Code.policy_violation},
    "acks to 0, 1 or all": {Code.invalid_required_acks},
    "internal to Kafka": {Code.invalid_topic_exception},
    "the network": {Code.corrupt_message},
    "another client writes under this producer id": {Code.invalid_producer_epoch},
}
"""What must be advised, and after which codes, if Produce is refused."""
_ABOUT_COORDINATORS: Final[Mapping[str, set[int]]] = {
    "WRITE on the topic": {Code.topic_authorization_failed},
    "IDEMPOTENT_WRITE on the cluster": {Code.cluster_authorization_failed},
    "WRITE and DESCRIBE on the transactional id": {Code.transactional_id_authorization_failed},
    "READ on the group": {Code.group_authorization_failed},
    "Lower transaction_timeout": {Code.invalid_transaction_timeout},
    "Another producer with this": {Code.invalid_producer_epoch, Code.producer_fenced},
    "may have aborted the transaction": {Code.invalid_txn_state},
    "transactional.id.expiration.ms": {Code.invalid_producer_id_mapping},
    "consume again": {Code.illegal_generation, Code.unknown_member_id, Code.fenced_instance_id},
    "Create the topic": {Code.unknown_topic_or_partition},
    "too old for transactions": {Code.unsupported_version},
}
"""The same, if a coordinator refuses a request."""
_NAMES_RECORDS: Final = (Code.invalid_timestamp, Code.invalid_record)
"""The codes after which single records are at fault."""
_MOST_NAMED: Final = 10
"""How many records an error names at most."""
_CODES: Final[list[int]] = [*Code, 999]


def drill_said(dice: Random) -> Iterator[str]:
    """Yield what an error, a reason or an incident says that does not follow from its cause."""
    often = [_endings, _windows, _windows, _incidents] * 3
    for drill in (_refusals, _coordinators, *often):
        for wrong in drill(dice):
            yield f"said: {wrong}"
            return


def _lacks(error: errors.KafkaError, code: int, *words: str) -> Iterator[str]:
    """Yield which of some words an error lacks, and whether it is not of a code's class."""
    known = isinstance(error, errors.BrokerResponseError) and error.errno == code
    if not known or type(error) is not errors.error_for_code(code):
        yield f"{error!r} for the code {code}, not a {errors.error_for_code(code).__name__}"
    for word in words:
        if word not in str(error):
            yield f"the error {str(error)!r} lacks {word!r}"


def _advice(error: errors.KafkaError, code: int, about: Mapping[str, set[int]]) -> Iterator[str]:
    """Yield what an error advises, if that is not just what its code asks for."""
    due = [advice for advice, codes in about.items() if code in codes] or [_ELSE]
    told = [advice for advice in (*about, _ELSE) if advice in str(error)]
    if told != due:
        yield f"{told} is advised about the code {code!r}, not {due}"


# -- batches that are refused ----------------------------------------------------------------------


def _refusals(dice: Random) -> Iterator[str]:
    for code in (*dice.sample(_CODES, 15), dice.choice(_NAMES_RECORDS)):
        count = dice.choice((1, 2, 12))
        indexes = [dice.randrange(-1, count + 2) for _ in range(dice.choice((0, 0, 1, 2, 12)))]
        named = tuple((index, dice.choice((None, f"odd {index}"))) for index in indexes)
        message = dice.choice((None, "", "no\nway."))
        answer = PartitionAnswer("t", None, 3, code, -1, error_message=message, record_errors=named)
        error = refusal_error(_WHERE, answer, count, 4, _BROKER)
        words = [f"{_WHERE}: {_BROKER} refused", _records(count), "in attempt 4"]
        words += [] if message else ["in attempt 4:" if named else "in attempt 4."]
        words += ["attempt 4: no\\nway."] if message and not named else []
        words += [f"attempt 4: no\\nway. (record {indexes[0]}:"] if message and named else []
        told = [f"record {index}: {text or 'refused'}" for index, text in named]
        yield from _lacks(error, code, *words, *told[:_MOST_NAMED])
        if len(told) > _MOST_NAMED and ", ".join(told[: _MOST_NAMED + 1]) in str(error):
            yield f"{str(error)!r} names more than {_MOST_NAMED} records"
        yield from _advice(error, code, _ABOUT_PRODUCE)
        yield from _of_records(answer, count)
        yield from _of_size(dice, answer, count)


def _records(count: int) -> str:
    return "of 1 record " if count == 1 else f"of {count} records "


def _of_records(answer: PartitionAnswer, count: int) -> Iterator[str]:
    told = culprits(_WHERE, answer, count, 4, _BROKER)
    at_fault = answer.record_errors if answer.error_code in _NAMES_RECORDS else ()
    due = {index: text for index, text in at_fault if index in range(count)}
    if list(told) != sorted(due):
        yield f"the records {list(told)} are at fault, not {sorted(due)}"
        return
    for index, text in due.items():
        why = text or answer.error_message or "does not say why"
        words = f"{_WHERE}: {_BROKER} refused", f"record {index} ", f"batch of {count} "
        yield from _lacks(told[index], answer.error_code, *words, "in attempt 4", why.rstrip("."))
        yield from _advice(told[index], answer.error_code, _ABOUT_PRODUCE)


def _of_size(dice: Random, answer: PartitionAnswer, count: int) -> Iterator[str]:
    nbytes, limit = 1000, dice.choice((None, 999, 1000, 1001))
    error = too_large(_WHERE, answer, nbytes, count, limit, _BROKER)
    # A limit that the batch keeps does not explain the refusal.
    named = "(999 bytes)" if limit == 999 else "(the value is not known)"
    records = "one record" if count == 1 else f"{count} records"
    words = f"{_WHERE}: {_BROKER} refused", "1000 bytes", f"with {records} as", named
    yield from _lacks(error, answer.error_code, *words, "raise max.message.bytes")


# -- requests that a coordinator refuses -----------------------------------------------------------


def _coordinators(dice: Random) -> Iterator[str]:
    kind = dice.choice(list(CoordinatorKey))
    about = Coordinator(kind, "orders").in_words
    if about != ("group 'orders'" if kind is CoordinatorKey.GROUP else "transactional id 'orders'"):
        yield f"the coordinator's key, a {kind!r} 'orders', is called {about}"
    for code in dice.sample(_CODES, 15):
        node = dice.choice((None, 0, 5))
        error = coordinator_error(code, f"EndTxn of {about}.", node)
        by = "refused by a broker." if node is None else f"refused by broker {node}."
        yield from _lacks(error, code, f"EndTxn of {about}.", by)
        yield from _advice(error, code, _ABOUT_COORDINATORS)


# -- outcomes --------------------------------------------------------------------------------------


def _endings(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the error of records that share an outcome."""
    text = dice.choice(("", "the broker is down.", f"{_WHERE}: the broker is down"))
    choices: list[tuple[object, ...]] = [(text,), (text,), (text, 7), (), (5, text)]
    arguments = dice.choice(choices)
    reason = errors.broker_error(Code.request_timed_out, *arguments)
    reason.__cause__ = cause = dice.choice((None, OSError("why")))
    status = dice.choice((DeliveryStatus.NOT_WRITTEN, DeliveryStatus.UNKNOWN))
    incident = dice.choice((None, _USUAL))
    own = outcome_error(reason, _WHERE, status, incident)
    if (own.status, own.incident, own.__cause__) != (status, incident, cause):
        facts = own.status, own.incident, own.__cause__
        yield f"an outcome's error has {facts}, not {(status, incident, cause)}"
    if type(own) is not type(reason) or (reason.args, reason.status) != (arguments, None):
        yield f"an outcome's error is {own!r}; its reason is now {reason!r} with {reason.status}"
    if arguments[:1] == (5,):
        if own.args != arguments:
            yield f"as an outcome, an error has the arguments {own.args}, not {arguments}"
        return
    said = str(own.args[0])
    if said.count(_WHERE) != 1 or not said.startswith(_WHERE):
        yield f"the error {said!r} does not begin with {_WHERE}, or names it twice"
    if own.args[1:] != arguments[1:]:
        yield f"the other arguments of an outcome's error are {own.args[1:]}, not {arguments[1:]}"
    if arguments and text and "the broker is down" not in said:
        yield f"the error {said!r} lacks its reason, {text!r}"
    unknown = status is DeliveryStatus.UNKNOWN
    advice = {
        "The records may be written": unknown,
        "resolve": unknown and incident is not None,
        "Without idempotence": unknown and incident is None,
    }
    due = [words for words, is_due in advice.items() if is_due]
    told = [words for words in advice if words in said]
    if told != due:
        yield f"of {list(advice)}, {said!r} has {told}, not {due}, for {status} with {incident}"


# -- windows ---------------------------------------------------------------------------------------


@cache
def _config(**options: Any) -> ProducerConfig:
    return ProducerConfig.build("b1:9092", **options)


def _windows(dice: Random) -> Iterator[str]:
    """Yield which reason for a window is told, if it is not the one that applies."""
    in_flight = dice.choice((1, 4, 5, 6, 12, 13, 100))
    others: list[dict[str, Any]] = [{"enable_idempotence": False}, {"broker_dedup": "range"}]
    options = dice.choice([{}, {}, {}, *others])
    config = _config(max_in_flight_requests_per_connection=in_flight, **options)
    link = Link(1, 5, 5, 0.0, Discovery("broker 5", config, dice.random), BrokerMemory(dice.random))
    offered, answers = dice.choice((13, 14, 14, 14)), dice.random() < 0.8
    link.discovery.opened(offered)
    if offered > 13 and config.enable_idempotence:
        link.discovery.begin()
        link.discovery.described(0, named=True, topic="t", now=0.0)
        if answers:
            link.discovery.answered()
    window, limit = PartitionWindow(None), dice.choice((None, 11, 12, 13))
    if limit is not None:
        window.learn(limit)
    disproved = dice.random() < 0.5
    if disproved:
        link.memory.disprove(Disproof(20, 12, 13), 0.0)
    connected = dice.random() < 0.9
    state = cast(PartitionState, SimpleNamespace(window=window))
    told = window_reason(state, link if connected else None, config)
    if "enable_idempotence" in options:
        due = ["enable_idempotence is off"]
    elif options:
        due = ["KIP-758"]
    elif not connected:
        due = ["leader is not connected"]
    else:
        due = [f"max_in_flight_requests_per_connection ({in_flight}); "]
        due *= in_flight < (limit or 5)
        if offered < 14 or not answers:
            due.append(link.discovery.reason)
        elif limit is None:
            due.append("broker 5 has not acknowledged a batch")
        elif disproved and limit >= 12:
            due.append("broker 5 says that it retains more batches than 12,")
        else:
            due.append(f"broker 5 retains {limit} batches")
    by_option = "max_in_flight_requests_per_connection"
    right = all(word in told for word in due) and (by_option in told) is (by_option in due[0])
    if not right:
        yield f"the reason is {told!r}, not one with {due}"


# -- incidents -------------------------------------------------------------------------------------

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Of a batch: base offset, length, leader epoch, magic 2, CRC, attributes, and seven others."""


_AFTER_SOME: Final = Acknowledged(offset=40, producer_id=6, producer_epoch=2, last_sequence=3)
_USUAL: Final = Incident(
    topic="t",
    partition=3,
    producer_id=7,
    producer_epoch=1,
    base_sequence=0,
    count=2,
    timestamp_ms=77,
)


def _incidents(dice: Random) -> Iterator[str]:
    """Yield an incident that does not say of its batch what it should."""
    crc, codec, identity = dice.randrange(2**32), dice.randrange(5), ProducerIdentity(7, 1)
    batch = made_batch(0, 2, stamp_ms=77, base=2**31 - 1 + dice.choice((0, 1, 5)))
    batch.data = _HEADER.pack(0, 49, -1, 2, crc, codec, 1, 0, 77, 7, 1, 0, 2)
    batch.renamed = dice.random() < 0.5
    batch.identity = dice.choice((identity, identity, identity, None))
    ends: list[LogEnd | None] = [None, (40, None, 3), (40, ProducerIdentity(6, 2), 3)]
    after = dice.choice(ends)
    sent = dice.random() < 0.7
    if sent:
        batch.send(Attempt(1, 5, 0, 0.0, knows_us=True, after=after))
    topic_id = dice.choice((None, UUID(int=9)))
    told = incident_of(batch, TopicPartition("t", 3), topic_id)
    behind = _AFTER_SOME if sent and after is not None and after[1] is not None else None
    due = replace(_USUAL, base_sequence=batch.base % 2**31, topic_id=topic_id, after=behind)
    due = replace(due, crc=crc, codec=codec, renumbered=batch.renamed)
    if told != (None if batch.identity is None else due):
        yield f"the incident of {batch} is {told}, not {due}"
    if SendProduce(1, 2, 13, -1, 1000, None, []).records != 0:
        yield "a Produce request without a batch has records"
    if ReadBack(1, 2, "t", None, 3, 40).leader_epoch != -1:
        yield "a Fetch request names a leader epoch that nobody knows"
