"""The bench of the drill of transactions: the parts, the model of them, and the comparison."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, cast

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.cluster import ClusterView
from aioidem._engine.coordination import Coordination
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.transactions import Transactions
from aioidem._engine.transactions import TransactionState as S
from aioidem._protocol.metadata import BrokerAddress
from aioidem.structs import DeliveryStatus

from .coordinated_answers import Model
from .coordinated_codes import Said
from .coordinated_model import FIRST, LONGEST
from .coordinated_parts import Around, Wire
from .coordinated_rows import Which

__all__ = ["BROKERS", "OWN", "PLACES", "TIMEOUT", "Bench"]

TIMEOUT: Final = 45.5
_CONFIG: Final = ProducerConfig(
    bootstrap_servers=(("b1", 9092),), transactional_id="x", transaction_timeout=TIMEOUT
)
PLACES: Final = (("t", 0), ("t", 1), ("u", 0))
BROKERS: Final = {number: BrokerAddress(number, f"b{number}", 9092) for number in range(3)}
OWN: Final = (
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.transaction_abortable,
    ErrorCode.concurrent_transactions,
)
"""The codes that Kafka has for transactions, each of which means another thing."""


class Bench:
    """One transactional producer, and its model."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.steps = 0
        self._now = dice.choice((0.0, 1e6))
        self._around = around = Around()
        self._ledger = IdentityLedger()
        backoff = Backoff(FIRST, LONGEST, lambda: 0.5)
        self._part = Transactions("x", self._ledger, backoff)
        self._model = Model("x")
        self._metadata = MetadataRefresher(300.0, Backoff(FIRST, LONGEST, lambda: 0.5))
        self._cluster = ClusterView()
        self._cluster.brokers = dict(BROKERS)
        self._level = dice.choice((0, 1, 2, 2, 3))
        parts = cast("Any", around)
        self._reasons = IdentityRequest(_CONFIG, self._ledger, self._metadata, parts, backoff)
        self._coordination = Coordination(
            *(_CONFIG, self._part, self._ledger, self._reasons, self._cluster, parts),
            *cast("Any", (self._metadata, parts, parts, parts, parts)),
        )
        self._wire = Wire()
        # How likely it is that a batch gets an answer, that records are written at all, and that
        # the connection of a call is lost.
        self._answered = dice.choice((0.9, 0.9, 0.1))
        self._written = dice.choice((0.7, 0.7, 0.05))
        self._lossy = dice.choice((0.02, 0.2))
        # The errors that were given to the engine, with the statuses that they must keep.
        self._given: list[tuple[errors.KafkaError, DeliveryStatus | None]] = []

    def _followed(self, left: int) -> str | None:
        """Return what is wrong with what becomes of the records, and of the producer."""
        around, state, cause = self._around, self._model.state, self._part.cause
        if around.deaths != ([cause] if state is S.FATAL else []):
            return f"the producer ends with {around.deaths}"
        if state is S.UNINITIALISED and self._reasons.error is not cause:
            return f"the reason without an identity is {self._reasons.error}"
        kind: type[errors.KafkaError] = errors.TransactionAborted
        doubt: DeliveryStatus | None = None
        if state is S.ABORTABLE:
            kind, doubt = errors.AbortableTransactionError, DeliveryStatus.UNKNOWN
        elif state in (S.FATAL, S.UNINITIALISED):
            left = 0
        elif state is not S.ABORTING:
            doubt = DeliveryStatus.NOT_WRITTEN
            left = left if self._model.rows.committed is False else 0
        due = [(kind, doubt)] if left or state in (S.ABORTABLE, S.ABORTING) else []
        if [(type(error), told) for error, told in around.settled] != due:
            return f"records end as {around.settled}, not {due}"
        for error, _ in around.settled:
            if state is S.ABORTABLE and (
                error.__cause__ is not cause or str(cause) not in f"{error}"
            ):
                return "records are not told why the transaction cannot be committed"
        return None

    def _tried(
        self, due: type[errors.KafkaError] | None, call: Callable[[], object], words: str = ""
    ) -> str | None:
        """Call; return what is wrong with the error, or with the lack of one."""
        try:
            call()
        except errors.KafkaError as error:
            if type(error) is not due or words not in str(error):
                return f"{error!r} is raised, not {due}"
            return self._unexplained(error)
        return None if due is None else f"nothing is raised, not {due}"

    def _unexplained(self, error: errors.KafkaError) -> str | None:
        """Return how an error that the application gets does not tell what is the matter."""
        cause = self._part.cause
        if isinstance(error, errors.AbortableTransactionError):
            named = error.__cause__ is cause and str(cause) in str(error)
            return None if named else "it is not told why the transaction cannot be committed"
        misuse = isinstance(error, (errors.IllegalStateError, errors.IllegalOperation))
        if misuse or cause is None:
            return None
        same = (str(error), error.status) == (str(cause), cause.status)
        return None if same and error is not cause else "a fatal error is not copied"

    def _error(self) -> errors.KafkaError:
        status = self._dice.choice((None, DeliveryStatus.NOT_WRITTEN, DeliveryStatus.UNKNOWN))
        kind = self._dice.choice((errors.KafkaConnectionError, errors.UnsupportedVersionError))
        error = kind(f"error number {len(self._given)}", status=status)
        self._given.append((error, status))
        return error

    @staticmethod
    def _described(error: errors.KafkaError) -> Said:
        return Said(type(error), (str(error),), (), error.status)

    def _difference(self) -> str | None:
        """Return how the part differs from the model; None if it does not."""
        part, model, rows = self._part, self._model, self._model.rows
        if (part.state, part.awaits) == (model.state, model.awaits) and self._dice.random() < 0.4:
            return None  # whatever else is different will be so after the next step
        mapping, now = ErrorCode.invalid_producer_id_mapping, self._now
        groups = {who.key: at for who, at in model.places.items() if who != model.own}
        pairs: dict[str, tuple[object, object]] = {
            "state": (part.state, model.state),
            "outcome": (part.outcome.committed, rows.committed),
            "told": (part.outcome.told, rows.told),
            "identity": (self._ledger.current, model.identity),
            "next attempt": (part.awaits, model.awaits),
            "in transaction": (part.in_transaction, model.open),
            "grants": (part.grants_epochs, True),
            "ending": (part.ending, model.state in (S.COMMITTING, S.ABORTING)),
            "may send": (part.may_send, model.may_send),
            "may change": (part.may_change_id, model.state is S.READY and not model.reasons),
            "gated": (part.gated, not rows.v2),
            "version": (part.version, rows.version),
            "of Produce": ([part.produce_version(n) for n in (9, 13)], [9, 13 if rows.v2 else 11]),
            "added": (part.added, rows.added),
            "offsets": (part.offsets, [each.given for each in rows.queue]),
            "left": ([each.left for each in part.offsets], [each.left for each in rows.queue]),
            "name": (part.transactional_id, model.own.key),
            "coordinator": (part.coordinator.node_id, model.places.get(model.own)),
            "groups": (
                {key: each.node_id for key, each in part.coordinators.items() if key in groups},
                {key: at for key, at in groups.items() if key in part.coordinators},
            ),
            "finishing": (part.finishing(mapping, now), model.finishing(mapping, now)),
            "unadded": ([each for each in PLACES if part.not_added(*each)], self._unadded()),
        }
        for name, (told, due) in pairs.items():
            if told != due:
                return f"{name} is {told!r}, not {due!r}"
        for name, error, said in (
            ("cause", part.cause, model.cause),
            ("refusal", part.last_refusal, model.refusal),
        ):
            if not (error is None if said is None else said.fits(error)):
                return f"{name} is {error!r}, not {said}"
        return self._explained()

    def _unadded(self) -> list[Which]:
        return [each for each in PLACES if each in self._model.rows.wanted]

    def _explained(self) -> str | None:
        """Return how the reason for a partition that is not added is wrong."""
        refusal = self._part.last_refusal
        for which in self._unadded():
            text = self._part.not_added(*which) or ""
            if self._model.own.words not in text or (str(refusal) in text) is (refusal is None):
                return f"a partition is not added because {text!r}"
        return None
