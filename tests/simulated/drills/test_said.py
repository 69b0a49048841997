"""The drill of errors finds nothing wrong, and notices a text that says something else."""

from __future__ import annotations

from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._engine import coordinator_refusals, outcome_error, refusals, window_reason
from aioidem.structs import DeliveryStatus

from . import said
from .said import drill_said

SEEDS = range(60)


def wrong() -> bool:
    return any(True for seed in SEEDS for _ in drill_said(Random(seed)))


def test_errors_say_what_follows_from_their_cause() -> None:
    assert not [what for seed in SEEDS for what in drill_said(Random(seed))]


def without(table: Any, code: int) -> Any:
    return MappingProxyType({each: text for each, text in table.items() if each != code})


def of_no_class(code: int, text: str, advice: Any) -> errors.KafkaError:
    return errors.KafkaError(str(with_advice(code, text, advice)))


def the_same_error(error: errors.KafkaError, *_: object) -> errors.KafkaError:
    return error


def names_it_twice(text: str, where: str, status: DeliveryStatus, incident: Any) -> str:
    return f"{where}: {explained(text, where, status, incident)}"


with_advice, explained = refusals.with_advice, outcome_error._explained


@pytest.mark.parametrize(
    ("module", "name", "broken"),
    [
        (refusals, "_ADVICE", without(refusals._ADVICE, ErrorCode.not_enough_replicas)),
        (refusals, "_NAMES_RECORDS", frozenset({ErrorCode.invalid_record})),
        (refusals, "with_advice", of_no_class),
        (
            coordinator_refusals,
            "_ADVICE",
            without(coordinator_refusals._ADVICE, ErrorCode.fenced_instance_id),
        ),
        (outcome_error, "_explained", names_it_twice),
        (window_reason, "_reason_of_the_broker", lambda *_: "broker 5 retains 5 batches"),
        (said, "outcome_error", the_same_error),
        (said, "incident_of", lambda *_: None),
    ],
)
def test_a_text_that_says_something_else_is_noticed(
    module: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, broken)
    assert wrong()
