"""`IdentityRequest`: when a producer without transactions asks for a producer id."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem import ProducerConfig, errors
from aioidem._engine import steps
from aioidem._engine.backoff import Backoff
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.request_ledger import RequestLedger
from aioidem._protocol.producer_id import ProducerIdAnswer

from .driver import Rig, made_link

FIRST_DELAY = 0.25
LOADING = ErrorCode.coordinator_load_in_progress
DENIED = ErrorCode.cluster_authorization_failed


class Bench:
    """An `IdentityRequest` with the ledgers of a producer that has a connection."""

    def __init__(self, **options: Any) -> None:
        self.rig = Rig().start()
        self.identity = IdentityLedger()
        self.metadata = MetadataRefresher(300.0, Backoff(1.0, 1.0, lambda: 0.5))
        self._requests = RequestLedger(self.rig.core.connections, self.rig.core.budget)
        self.of = IdentityRequest(
            ProducerConfig(bootstrap_servers=(("b1", 9092),), **options),
            self.identity,
            self.metadata,
            self._requests,
            Backoff(FIRST_DELAY, 60.0, lambda: 0.5),
        )
        self.metadata.sent()
        self.metadata.answered(0.0, enough=True)

    def ask(self, now: float) -> list[steps.Step]:
        """Return the requests that are sent now."""
        made = self._requests.begin_poll()
        self.of.ask(now)
        return made

    def answer(self, code: int, producer_id: int = -1, epoch: int = -1, now: float = 0.0) -> Any:
        """Answer the outstanding request."""
        return self.of.on_answer(made_link(), ProducerIdAnswer(code, producer_id, epoch), now)


def asked(now: float = 0.0, **options: Any) -> Bench:
    """Return a bench on which a request is outstanding."""
    bench = Bench(**options)
    (step,) = bench.ask(now)
    assert isinstance(step, steps.InitProducerId)
    return bench


def test_an_id_is_requested_once_and_from_the_beginning() -> None:
    bench = Bench()
    assert (bench.of.awaits, bench.of.error) == (0.0, None)
    assert len(bench.ask(0.0)) == 1
    assert bench.ask(99.0) == []
    assert (bench.of.awaits, bench.of.error) == (None, None)


@pytest.mark.parametrize("options", [{"transactional_id": "x"}, {"enable_idempotence": False}])
def test_no_id_is_requested_where_none_is_needed(options: dict[str, Any]) -> None:
    bench = Bench(**options)
    assert bench.ask(0.0) == []
    assert bench.of.awaits is None


def test_no_id_is_requested_before_the_cluster_is_known() -> None:
    bench = Bench()
    bench.metadata.refreshed_at = None
    assert bench.ask(0.0) == []
    bench.metadata.refreshed_at = 1.0
    assert len(bench.ask(1.0)) == 1


def test_no_id_is_requested_without_a_connection() -> None:
    bench = Bench()
    for link in list(bench.rig.links.values()):
        bench.rig.lose(link, poll=False)
    assert not any(isinstance(step, steps.InitProducerId) for step in bench.ask(0.0))
    assert bench.of.awaits == 0.0


@pytest.mark.parametrize("identity", [(0, 0), (0, 7), (7, 0), (2**62, 32767)])
def test_any_id_is_taken(identity: tuple[int, int]) -> None:
    bench = asked()
    assert bench.answer(0, *identity) is None
    assert bench.identity.current == identity
    assert bench.of.awaits is None


@pytest.mark.parametrize("answer", [(0, -1, 3), (0, 3, -1), (LOADING, 3, 4), (DENIED, 3, 4)])
def test_an_answer_with_an_error_or_without_an_id_grants_none(answer: tuple[int, int, int]) -> None:
    bench = asked()
    bench.answer(*answer)
    assert bench.identity.current is None


def test_it_is_requested_again_after_a_delay_that_doubles_until_it_is_granted() -> None:
    bench = asked(5.0)
    bench.answer(LOADING, now=5.0)
    assert bench.of.awaits == 5.0 + FIRST_DELAY
    assert bench.ask(5.0 + FIRST_DELAY - 0.01) == []
    assert len(bench.ask(5.0 + FIRST_DELAY)) == 1
    bench.of.failed(6.0)
    assert bench.of.awaits == 6.0 + 2 * FIRST_DELAY
    assert len(bench.ask(9.0)) == 1
    bench.answer(0, 7, 0)
    bench.identity.disown()
    assert len(bench.ask(9.0)) == 1
    bench.of.failed(9.0)
    assert bench.of.awaits == 9.0 + FIRST_DELAY


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (DENIED, "IDEMPOTENT_WRITE"),
        (ErrorCode.transactional_id_authorization_failed, "WRITE on the transactional id None"),
        (ErrorCode.unsupported_version, "InitProducerId"),
        (ErrorCode.invalid_transaction_timeout, "InitProducerId"),
        (ErrorCode.invalid_request, "InitProducerId"),
    ],
)
def test_a_refusal_is_told_and_the_id_is_requested_again(code: int, told: str) -> None:
    bench = asked()
    error = bench.answer(code)
    assert error is bench.of.error
    assert isinstance(error, errors.KafkaError)
    assert told in str(error)
    assert bench.of.awaits == FIRST_DELAY
    bench.ask(FIRST_DELAY)
    assert bench.answer(0, 7, 0) is None
    assert bench.of.error is None


@pytest.mark.parametrize("code", [0, LOADING, ErrorCode.unknown_server_error])
def test_what_may_pass_is_no_refusal(code: int) -> None:
    bench = asked()
    assert bench.answer(code) is None
    assert bench.of.error is None


def test_another_cluster_is_asked_at_once_and_has_refused_nothing() -> None:
    bench = asked(5.0)
    bench.answer(DENIED, now=5.0)
    bench.of.forget_cluster()
    assert (bench.of.error, bench.of.awaits) == (None, 0.0)


def test_a_reason_can_be_reported_and_withdrawn() -> None:
    bench = Bench()
    error = errors.KafkaTimeoutError("no")
    bench.of.report(error)
    assert bench.of.error is error
    bench.of.report(None)
    assert bench.of.error is None


def test_a_throttle_in_the_answer_holds_the_connection() -> None:
    """The client waits as long as the answer says (KIP-219)."""
    bench, link = asked(), made_link()
    bench.of.on_answer(link, ProducerIdAnswer(0, 7, 0, 2500), 4.0)
    assert link.throttled_until == 6.5
