"""IdentityRequest: asking the cluster for a producer id, without a transactional id.

Any broker gives one. A refusal is not fatal (KAFKA-13668): the grant may come back, so it is asked
for again after a back-off; but what waits now is ended at once.
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
"""A success without an id, and an error that names no reason: asked again."""

_REFUSED = frozenset(
    {
        ErrorCode.unsupported_version,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_transaction_timeout,
        ErrorCode.transactional_id_authorization_failed,
    }
)
_NEEDED: dict[int, str] = {
    ErrorCode.cluster_authorization_failed: (
        "a producer id needs IDEMPOTENT_WRITE on the cluster, or WRITE on some topic"
    ),
    ErrorCode.transactional_id_authorization_failed: (
        "a producer id needs WRITE on the transactional id {!r}"
    ),
}


class IdentityRequest:
    """Asks for a producer id when there is none.

    Args:
        config: validated options.
        identity: gets what is granted.
        metadata: a producer id is asked for once the cluster is known.
        requests: where the question goes.
        backoff: between attempts.
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
        # With a transactional id its coordinator grants each identity.
        self._wanted = config.enable_idempotence and config.transactional_id is None
        self._transactional_id = config.transactional_id
        self._identity = identity
        self._metadata = metadata
        self._requests = requests
        self._backoff = backoff
        self._not_before = 0.0
        # Why the cluster refuses to give one; None while it does not.
        self.error: errors.KafkaError | None = None

    def ask(self, now: float) -> None:
        """Ask for a producer id, if one is wanted now."""
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
        """Note what the broker says; a success without an id counts as a failure.

        Returns:
            Why everything that waits is to be ended; None when it may go on waiting.
        """
        link.throttle(answer.throttle_ms, now)
        code = answer.error_code
        if code == ErrorCode.none and answer.producer_id >= 0 and answer.producer_epoch >= 0:
            self._identity.grant(answer.producer_id, answer.producer_epoch)
            self._backoff.reset()
            self.error = None
            return None
        self.failed(now)
        if code in _REFUSED or not (code in _PASSING or may_pass(code)):
            wanted = _NEEDED.get(code, "InitProducerId")
            self.error = errors.broker_error(code, wanted.format(self._transactional_id))
            return self.error
        return None

    def failed(self, now: float) -> None:
        """Ask again after a back-off: it was refused, or never answered."""
        self._identity.refuse()
        self._not_before = now + self._backoff.next_delay()

    def report(self, error: errors.KafkaError | None) -> None:
        """Keep why no identity is to be had, None while one may be."""
        self.error = error

    def forget_cluster(self) -> None:
        """Begin anew: another cluster has other producer ids."""
        self.error = None
        self._not_before = 0.0

    @property
    def awaits(self) -> float | None:
        """Return when a producer id may next be requested; None if no request is to be made."""
        absent = self._wanted and self._identity.state is IdentityState.ABSENT
        return self._not_before if absent else None
