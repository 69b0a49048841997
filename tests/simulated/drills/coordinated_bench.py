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

from .comparing import differs, unequal
from .coordinated_answers import Model
from .coordinated_codes import Said
from .coordinated_model import FIRST, LONGEST
from .coordinated_parts import Surroundings, Wire
from .coordinated_rows import Which

__all__ = ["BROKERS", "OWN", "PLACES", "TIMEOUT", "Bench"]

TIMEOUT: Final = 45.5
"""`transaction_timeout`, in seconds."""
_CONFIG: Final = ProducerConfig(
    bootstrap_servers=(("b1", 9092),), transactional_id="x", transaction_timeout=TIMEOUT
)
PLACES: Final = (("t", 0), ("t", 1), ("u", 0))
"""The partitions."""
BROKERS: Final = {number: BrokerAddress(number, f"b{number}", 9092) for number in range(3)}
"""The brokers that metadata has named."""
OWN: Final = (
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.transaction_abortable,
    ErrorCode.concurrent_transactions,
)
"""The codes that Kafka has for transactions alone; each of them means another thing."""


class Bench:
    """One transactional producer, and its model."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.steps = 0
        self._now = dice.choice((0.0, 1e6))
        self._surroundings = around = Surroundings()
        self._ledger = IdentityLedger()
        backoff = Backoff(FIRST, LONGEST, lambda: 0.5)
        self._transactions = Transactions("x", self._ledger, backoff)
        self._model = Model("x")
        self._metadata = MetadataRefresher(300.0, Backoff(FIRST, LONGEST, lambda: 0.5))
        self._cluster = ClusterView()
        self._cluster.brokers = dict(BROKERS)
        self._level = dice.choice((0, 1, 2, 2, 3))
        parts = cast("Any", around)
        self._identity_request = IdentityRequest(
            _CONFIG, self._ledger, self._metadata, parts, backoff
        )
        self._coordination = Coordination(
            *(
                _CONFIG,
                self._transactions,
                self._ledger,
                self._identity_request,
                self._cluster,
                parts,
            ),
            *cast("Any", (self._metadata, parts, parts, parts, parts)),
        )
        self._wire = Wire()
        # How likely it is that a batch is acknowledged, that a call of the application writes
        # records and not offsets, and that the connection of a call is lost.
        self._answer_rate = dice.choice((0.9, 0.9, 0.1))
        self._write_rate = dice.choice((0.7, 0.7, 0.05))
        self._loss_rate = dice.choice((0.02, 0.2))
        # The errors that were given to the engine, with the statuses that they must keep.
        self._given: list[tuple[errors.KafkaError, DeliveryStatus | None]] = []

    def _wrong_ends(self, left: int) -> str | None:
        """Return what is wrong with what records, the producer and its callers were told.

        `left` is how many records had no outcome before.
        """
        around, state, cause = self._surroundings, self._model.state, self._transactions.cause
        wrong = differs("errors that end it", around.deaths, [cause] if state is S.FATAL else [])
        if wrong is not None:
            return wrong
        reason = self._identity_request.error
        if state is S.UNINITIALISED and reason is not cause:
            return f"why there is no identity: told {reason!r}, expected {cause!r}"
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
        settled = [(type(error), told) for error, told in around.settled]
        if settled != due:
            return differs("errors of queued records, and outcomes of those in doubt", settled, due)
        for error, _ in around.settled:
            if state is S.ABORTABLE and (
                error.__cause__ is not cause or str(cause) not in f"{error}"
            ):
                return f"the error of records: told {error!r}, expected {cause!r} as its cause"
        return None

    def _tried(
        self, due: type[errors.KafkaError] | None, call: Callable[[], object], words: str = ""
    ) -> str | None:
        """Make a call of the application; return what is wrong with its error, or the lack of one.

        Args:
            due: The error that must be raised; None for none.
            call: The call.
            words: Words that the text of the error must have.
        """
        try:
            call()
        except errors.KafkaError as error:
            if type(error) is not due or words not in str(error):
                expected = "none" if due is None else f"{due.__name__} with {words!r}"
                return f"error of the call: told {error!r}, expected {expected}"
            return self._unexplained(error)
        return None if due is None else f"error of the call: told none, expected {due.__name__}"

    def _unexplained(self, error: errors.KafkaError) -> str | None:
        """Return how an error that the application gets hides its cause; None if it does not."""
        cause = self._transactions.cause
        if isinstance(error, errors.AbortableTransactionError):
            named = error.__cause__ is cause and str(cause) in str(error)
            return None if named else f"error of the call: told {error!r}, expected cause {cause!r}"
        misuse = isinstance(error, (errors.IllegalStateError, errors.IllegalOperation))
        if misuse or cause is None:
            return None
        same = (str(error), error.status) == (str(cause), cause.status)
        if same and error is not cause:
            return None
        return f"error of the call: told {error!r}, expected a copy of {cause!r}"

    def _error(self) -> errors.KafkaError:
        """Return a new error for the engine, whose status must stay as it is."""
        status = self._dice.choice((None, DeliveryStatus.NOT_WRITTEN, DeliveryStatus.UNKNOWN))
        kind = self._dice.choice((errors.KafkaConnectionError, errors.UnsupportedVersionError))
        error = kind(f"error number {len(self._given)}", status=status)
        self._given.append((error, status))
        return error

    @staticmethod
    def _described(error: errors.KafkaError) -> Said:
        """Describe an error that the engine was given, for the model."""
        return Said(type(error), (str(error),), (), error.status)

    def _difference(self) -> str | None:
        """Return how the engine differs from the model; None if it does not.

        To save time, not all is compared after each step: what differs now will differ later, too.
        """
        part, model, rows = self._transactions, self._model, self._model.rows
        if (part.state, part.awaits) == (model.state, model.awaits) and self._dice.random() < 0.4:
            return None
        mapping, now = ErrorCode.invalid_producer_id_mapping, self._now
        groups = {who.key: at for who, at in model.places.items() if who != model.own}
        pairs: dict[str, tuple[object, object]] = {
            "state": (part.state, model.state),
            "outcome": (part.outcome.committed, rows.committed),
            "a caller has heard the outcome": (part.outcome.told, rows.outcome_told),
            "identity": (self._ledger.current, model.identity),
            "next attempt": (part.awaits, model.awaits),
            "in transaction": (part.in_transaction, model.open),
            "epochs are granted by a coordinator": (part.grants_epochs, True),
            "ending": (part.ending, model.state in (S.COMMITTING, S.ABORTING)),
            "may send": (part.may_send, model.may_send),
            "may change": (part.may_change_id, model.state is S.READY and not model.reasons),
            "first-ack gates close": (part.gated, not rows.v2),
            "level of transaction.version": (part.version, rows.version),
            "versions of Produce where brokers have 9 and 13": (
                [part.produce_version(n) for n in (9, 13)],
                [9, 13 if rows.v2 else 11],
            ),
            "added": (part.added, rows.added),
            "commits of offsets": (part.offsets, [each.given for each in rows.queue]),
            "offsets that are left of them": (
                [each.left for each in part.offsets],
                [each.left for each in rows.queue],
            ),
            "transactional id": (part.transactional_id, model.own.key),
            "broker of its coordinator": (part.coordinator.node_id, model.places.get(model.own)),
            "brokers of the groups' coordinators": (
                {
                    key: each.node_id
                    for key, each in part.coordinators.items()
                    if each.node_id is not None
                },
                {key: at for key, at in groups.items() if at is not None},
            ),
            "the new producer id may be unknown": (
                part.finishing(mapping, now),
                model.finishing(mapping, now),
            ),
            "partitions that wait to be added": (
                [each for each in PLACES if part.not_added(*each)],
                self._unadded(),
            ),
        }
        wrong = unequal(pairs)
        if wrong is not None:
            return wrong
        for name, error, said in (
            ("cause", part.cause, model.cause),
            ("refusal", part.last_refusal, model.refusal),
        ):
            if not (error is None if said is None else said.fits(error)):
                return f"{name}: told {error!r}, expected {said}"
        return self._wrong_reason()

    def _unadded(self) -> list[Which]:
        """Return the partitions that wait to be added to the transaction."""
        return [each for each in PLACES if each in self._model.rows.wanted]

    def _wrong_reason(self) -> str | None:
        """Return what is wrong with the reason why a partition is not added yet."""
        refusal = self._transactions.last_refusal
        for which in self._unadded():
            text = self._transactions.not_added(*which) or ""
            words = self._model.own.words
            if words not in text or (str(refusal) in text) is (refusal is None):
                what = f"why {which} is not added"
                return f"{what}: told {text!r}, expected {words!r} and the refusal {refusal!r}"
        return None
