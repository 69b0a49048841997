"""The errors have one class per code, aiokafka's names and flags, and survive pickling."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import aiokafka.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._producer.delivery import DeliveryContext
from aioidem._producer.home import HomeLoop
from aioidem._producer.queued import QueuedDelivery
from aioidem._producer.resolver import Resolver
from aioidem._producer.unseen import UnseenFailures
from aioidem.errors import (
    BrokerResponseError,
    ConfigError,
    CorruptRecordException,
    DeliveryTimeoutError,
    KafkaError,
    NotLeaderForPartitionError,
    PartialDeliveryError,
    RecordError,
    UnknownError,
    broker_error,
    error_for_code,
)
from aioidem.structs import DeliveryStatus

_ALL: list[type[KafkaError]] = [
    value
    for name in errors.__all__
    if inspect.isclass(value := getattr(errors, name)) and issubclass(value, KafkaError)
]
_BROKER: list[type[BrokerResponseError]] = [
    cls
    for cls in dict.fromkeys(_ALL)  # some classes have two names
    if issubclass(cls, BrokerResponseError) and cls is not BrokerResponseError
]
_THEIRS: list[Any] = [cls for cls in vars(aiokafka.errors).values() if inspect.isclass(cls)]
_AIOKAFKA: dict[int, Any] = {
    cls.errno: cls
    for cls in _THEIRS
    if hasattr(cls, "errno")
    and issubclass(cls, aiokafka.errors.BrokerResponseError)
    and cls.errno != ErrorCode.network_exception  # this code meant another error in Kafka 0.8
}
# The codes with which brokers answer a producer's requests.
_PRODUCERS_CODES = [
    ErrorCode.corrupt_message,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
    ErrorCode.not_leader_or_follower,
    ErrorCode.request_timed_out,
    ErrorCode.message_too_large,
    ErrorCode.invalid_topic_exception,
    ErrorCode.record_list_too_large,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.invalid_required_acks,
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.invalid_timestamp,
    ErrorCode.unsupported_version,
    ErrorCode.unsupported_for_message_format,
    ErrorCode.policy_violation,
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.duplicate_sequence_number,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.invalid_transaction_timeout,
    ErrorCode.concurrent_transactions,
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.operation_not_attempted,
    ErrorCode.kafka_storage_error,
    ErrorCode.sasl_authentication_failed,
    ErrorCode.unknown_producer_id,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.invalid_record,
    ErrorCode.throttling_quota_exceeded,
    ErrorCode.producer_fenced,
    ErrorCode.unknown_topic_id,
    ErrorCode.inconsistent_topic_id,
    ErrorCode.transaction_abortable,
    ErrorCode.rebootstrap_required,
]


@pytest.mark.parametrize("code", _PRODUCERS_CODES)
def test_every_code_a_producer_can_meet_has_a_class_of_its_own(code: ErrorCode) -> None:
    """Each code that a broker may answer to a producer has a class of its own."""
    found = error_for_code(code)
    assert found is not UnknownError
    assert found.errno == code


@given(st.integers(-(2**15), 2**15 - 1))
def test_every_code_maps_to_a_class_and_to_an_error_that_keeps_the_code(code: int) -> None:
    found = error_for_code(code)
    assert found.errno == code or found is UnknownError
    assert broker_error(code).errno == code
    assert type(broker_error(code)) is found


def test_every_class_is_found_by_its_code_which_kafka_knows() -> None:
    """Each class is found by its code, and Kafka has that code."""
    for cls in _BROKER:
        assert error_for_code(cls.errno) is cls
        ErrorCode(cls.errno)
        assert cls.message.isupper(), cls
        assert cls.description, cls


def test_names_and_flags_are_aiokafkas() -> None:
    """Errors that aiokafka has too have aiokafka's names, messages and flags."""
    shared = [cls for cls in _BROKER if cls.errno in _AIOKAFKA]
    assert shared
    for cls in shared:
        theirs = _AIOKAFKA[cls.errno]
        assert cls.__name__ == theirs.__name__
        assert cls.message == theirs.message
        flags = (theirs.retriable, theirs.invalid_metadata)
        assert (cls.retriable, cls.invalid_metadata) == flags, cls


def test_codes_aiokafka_lacks_are_retriable_where_java_retries() -> None:
    """Errors that aiokafka does not have are retriable where Java's are."""
    lacked = [cls for cls in _BROKER if cls.errno not in _AIOKAFKA]
    assert lacked
    for cls in lacked:
        assert cls.retriable is ErrorCode(cls.errno).retriable, cls
        assert cls.message.lower() == ErrorCode(cls.errno).name


@pytest.mark.parametrize(
    "name",
    [
        *("InvalidMessageError", "CoordinatorNotAvailableError", "NotCoordinatorError"),
        "CoordinatorLoadInProgressError",
    ],
)
def test_aiokafkas_second_names_name_the_same_codes(name: str) -> None:
    """Where aiokafka has a second name for an error, that name means the same code in aioidem."""
    ours, theirs = getattr(errors, name), getattr(aiokafka.errors, name)
    assert ours.errno == theirs.errno


@pytest.mark.parametrize("name", ["KafkaConnectionError", "KafkaTimeoutError", "ProducerClosed"])
def test_local_errors_have_aiokafkas_flags(name: str) -> None:
    """Errors that have no Kafka error code have the same flags as in aiokafka."""
    ours, theirs = getattr(errors, name), getattr(aiokafka.errors, name)
    assert (ours.retriable, ours.invalid_metadata) == (theirs.retriable, theirs.invalid_metadata)


@pytest.mark.parametrize("status", [None, DeliveryStatus.NOT_WRITTEN, DeliveryStatus.UNKNOWN])
@pytest.mark.parametrize("args", [(), ("what happened",), ("what", 7)])
def test_every_error_survives_copying_and_pickling(
    status: DeliveryStatus | None, args: tuple[object, ...]
) -> None:
    for cls in _ALL:
        survives(cls, status, args)


def survives(
    cls: type[KafkaError], status: DeliveryStatus | None, args: tuple[object, ...]
) -> None:
    error = cls(*args, status=status)
    error.__cause__ = OSError("below")
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - ours
        assert type(again) is cls
        assert again.args == args
        assert again.status is status
        assert str(again) == str(error)
    assert copy.copy(error).__cause__ is error.__cause__
    assert copy.copy(cls(*args)).__suppress_context__ is False


class _FieldError(errors.KafkaConnectionError):
    """A user's error whose constructor takes something else than the text."""

    def __init__(self, field: str, *, code: int) -> None:
        super().__init__(f"{field} is bad")
        self.code = code


def test_a_users_error_with_a_constructor_of_its_own_can_be_copied() -> None:
    again = copy.copy(_FieldError("f", code=7))
    assert (type(again), str(again)) == (_FieldError, "_FieldError: f is bad")
    assert (again.code, again.status, again.__cause__) == (7, None, None)


def test_an_error_for_a_code_can_be_subclassed() -> None:
    """As aiokafka's can. The class of the code stays the one that is raised."""

    class Mine(errors.ProducerFenced):
        """Raised by a program's own code."""

    again = copy.copy(Mine("x"))
    assert (type(again), again.errno, again.retriable) == (
        Mine,
        90,
        errors.ProducerFenced.retriable,
    )
    assert type(broker_error(90, "x")) is errors.ProducerFenced


def test_a_note_about_a_copy_is_no_note_about_the_original() -> None:
    error = broker_error(90, "x")
    error.add_note("both")
    again = copy.copy(error)
    again.add_note("this one")
    assert (error.__notes__, again.__notes__) == (["both"], ["both", "this one"])


def test_an_unknown_code_survives_copying_and_pickling() -> None:
    error = broker_error(9999, "from broker 3")
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - ours
        assert again.errno == 9999
        told = "UnknownError: from broker 3 (this version of aioidem knows no error code 9999)"
        assert str(again) == f"[Error 9999] {told}"


def test_an_unknown_code_does_not_rub_off_on_its_class() -> None:
    """An error for an unknown code does not change the code of its class."""
    broker_error(9999)
    assert UnknownError.errno == -1


def test_the_deliveries_of_a_partial_failure_survive_pickling() -> None:
    context = DeliveryContext(HomeLoop(), UnseenFailures("c"), Resolver())
    deliveries = [QueuedDelivery(None, b"v", (), 0, None, 30, context) for _ in range(2)]
    error = PartialDeliveryError("2 of 3", deliveries=deliveries, status=DeliveryStatus.UNKNOWN)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert [delivery.status for delivery in again.deliveries] == [DeliveryStatus.PENDING] * 2
    assert again.status is DeliveryStatus.UNKNOWN


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KafkaError(), "KafkaError"),
        (ConfigError("linger=-1"), "ConfigError: linger=-1"),
        (DeliveryTimeoutError("120 s"), "DeliveryTimeoutError: 120 s"),
        (CorruptRecordException(), "[Error 2] CorruptRecordException"),
        (
            NotLeaderForPartitionError("t-0"),
            "[Error 6] NotLeaderForPartitionError: t-0",
        ),
    ],
)
def test_the_text_of_an_error_names_its_class_and_code(error: KafkaError, text: str) -> None:
    """The text of an error has its class, its code and its message."""
    assert str(error) == text


def test_bad_arguments_are_value_errors_and_timeouts_are_timeout_errors() -> None:
    """ConfigError and RecordError are ValueErrors; DeliveryTimeoutError is a TimeoutError."""
    assert issubclass(ConfigError, ValueError)
    assert issubclass(RecordError, ValueError)
    assert issubclass(DeliveryTimeoutError, TimeoutError)


def test_two_classes_for_one_code_cannot_be_made() -> None:
    """Defining a second class for a code is an error."""
    with pytest.raises(TypeError, match="error code 6 belongs to NotLeaderForPartitionError"):
        type("Second", (BrokerResponseError,), {}, errno=6, message="SECOND")
    assert error_for_code(6) is NotLeaderForPartitionError
