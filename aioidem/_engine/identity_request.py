"""IdentityRequest: requesting a producer id from any broker, for producers without transactions.

A refusal is not fatal (KAFKA-13668): the permission may be granted later, so the id is requested
again after a back-off. But the records that are waiting when the refusal comes end at once.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.idempotence import IdentityLedger, IdentityState
from aioidem._engine.links import Link
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import RequestKind
from aioidem._engine.steps import InitProducerId
from aioidem._engine.unlisted import may_pass
from aioidem._protocol.producer_id import ProducerIdAnswer

__all__ = ["IdentityRequest"]

_PASSING = frozenset({ErrorCode.none, ErrorCode.unknown_server_error})
"""The error codes after which the producer id is requested again.

NONE is one of them, for an answer that has neither an error nor a usable producer id. The other one
states no reason.
"""

_NEEDED: dict[int, str] = {
    ErrorCode.cluster_authorization_failed: (
        "a producer id needs IDEMPOTENT_WRITE on the cluster, or WRITE on some topic"
    ),
    ErrorCode.transactional_id_authorization_failed: (
        "a producer id needs WRITE on the transactional id {!r}"
    ),
}


class IdentityRequest:
    """Requests a producer id from the cluster when the producer has none.

    Args:
        config: validated options.
        identity: receives the identity (producer id and epoch) that is granted.
        metadata: says whether the cluster is known; before that no id is requested.
        requests: records the outstanding request, and has the Sender send it.
        backoff: the delays between attempts.
    """

    __slots__ = (
        "_backoff",
        "_identity",
        "_metadata",
        "_not_before",
        "_requests",
        "_transactional_id",
        "_wanted",
        "error",
    )

    def __init__(
        self,
        config: ProducerConfig,
        identity: IdentityLedger,
        metadata: MetadataRefresher,
        requests: RequestLedger,
        backoff: Backoff,
    ) -> None:
        # With a transactional id no id is requested here: the coordinator grants each identity.
        self._wanted = config.enable_idempotence and config.transactional_id is None
        self._transactional_id = config.transactional_id
        self._identity = identity
        self._metadata = metadata
        self._requests = requests
        self._backoff = backoff
        self._not_before = 0.0
        # Why the cluster refuses to grant a producer id; None if it does not.
        self.error: errors.KafkaError | None = None

    def ask(self, now: float) -> None:
        """Send InitProducerId, if the producer needs an id now and a broker is connected."""
        if (
            not self._wanted
            or self._identity.state is not IdentityState.ABSENT
            or now < self._not_before
            or self._metadata.refreshed_at is None
        ):
            return
        link = self._requests.any_link(now)
        if link is None:
            return
        self._identity.ask()
        token = self._requests.register(link, RequestKind.INIT_PRODUCER_ID, now)
        self._requests.add(InitProducerId(link.link_id, token))

    def on_answer(
        self, link: Link, answer: ProducerIdAnswer, now: float
    ) -> errors.KafkaError | None:
        """Handle the answer to InitProducerId.

        A success without an id counts as a failure, and so does one with the identity that another
        producer was seen to use.

        Returns:
            The error with which all waiting records end; None if they may go on waiting.
        """
        link.throttle(answer.throttle_ms, now)
        code = answer.error_code
        granted = (answer.producer_id, answer.producer_epoch)
        if code == ErrorCode.none and min(granted) >= 0 and not self._identity.is_shared(*granted):
            self._identity.grant(*granted)
            self._backoff.reset()
            self.error = None
            return None
        self.failed(now)
        if code not in _PASSING and not may_pass(code):
            wanted = _NEEDED.get(code, "InitProducerId")
            self.error = errors.broker_error(code, wanted.format(self._transactional_id))
            return self.error
        return None

    def failed(self, now: float) -> None:
        """Begin a back-off, because the request got no answer, or an answer without an id."""
        self._identity.refuse()
        self._not_before = now + self._backoff.next_delay()

    def report(self, error: errors.KafkaError | None) -> None:
        """Set the reason why no producer id can be obtained; None means that one can be."""
        self.error = error

    def forget_cluster(self) -> None:
        """Drop the refusal and the back-off: the producer moves to another cluster."""
        self.error = None
        self._not_before = 0.0

    @property
    def awaits(self) -> float | None:
        """The earliest time of the next request for an id, in seconds; None if none is needed."""
        absent = self._wanted and self._identity.state is IdentityState.ABSENT
        return self._not_before if absent else None
