"""The drill of requests for a producer id, by a producer without a transactional id.

Any broker may grant the id; `IdentityRequest` asks until one does. The model keeps when it may ask
next, and why the cluster refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final, cast

from kio.schema.errors import ErrorCode

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.backoff import Backoff
from aioidem._engine.idempotence import IdentityLedger, IdentityState
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.requests import RequestKind
from aioidem._protocol.producer_id import ProducerIdAnswer

from .comparing import differs, typed, unequal
from .coordinated_parts import Surroundings, Wire

__all__ = ["drill_asked_identity"]

_STEPS: Final = 25
_FIRST: Final = 0.5
_LONGEST: Final = 3.0
"""The first back-off and the longest one, in seconds."""
_SERVER: Final = (("b1", 9092),)
_CONFIGS: Final = (
    ProducerConfig(bootstrap_servers=_SERVER),
    ProducerConfig(bootstrap_servers=_SERVER),
    ProducerConfig(bootstrap_servers=_SERVER, enable_idempotence=False),
    ProducerConfig(bootstrap_servers=_SERVER, transactional_id="x"),
)
_RIGHTS: Final = {
    ErrorCode.cluster_authorization_failed: "IDEMPOTENT_WRITE",
    ErrorCode.transactional_id_authorization_failed: "transactional id",
}
"""By error code: what the error must name."""
_CODES: Final = (0, 0, 0, 0, -1, ErrorCode.coordinator_load_in_progress, *_RIGHTS)


def drill_asked_identity(dice: Random) -> Iterator[str]:
    """Yield what is wrong with when a producer id is asked for, and with what is told of it."""
    for wrong in _Drill(dice).run():
        yield f"producer id: {wrong}"
        return


class _Drill:
    """An `IdentityRequest`, and what was asked and granted."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        config = dice.choice(_CONFIGS)
        self._needed = config.enable_idempotence and config.transactional_id is None
        self._ledger = IdentityLedger()
        self._metadata = MetadataRefresher(300.0, Backoff(1.0, 1.0, lambda: 0.5))
        self._surroundings = Surroundings()
        backoff = Backoff(_FIRST, _LONGEST, lambda: 0.5)
        parts = cast("Any", self._surroundings)
        self._request = IdentityRequest(config, self._ledger, self._metadata, parts, backoff)
        self._now = dice.choice((0.0, 1e6))
        # The model: what was granted, and to whom it belongs; whether the question is open; when it
        # may be asked again; how often it failed in a row; why it was refused.
        self._granted: tuple[int, int] | None = None
        self._taken: tuple[int, int] | None = None
        self._asked = False
        self._not_before = 0.0
        self._failures = 0
        self._refusal: tuple[type[errors.KafkaError], str] | None = None

    def run(self) -> Iterator[str]:
        """Ask, answer, lose and refuse at random, and yield what is wrong."""
        for _ in range(_STEPS):
            self._now += self._dice.choice((0.0, 0.25, 0.5, 3.0))
            self._surroundings.begin_step()
            if self._asked:
                wrong = self._answer() if self._dice.random() < 0.7 else self._fail()
            else:
                wrong = self._ask() if self._dice.random() < 0.7 else self._change()
            wrong = wrong or self._difference()
            if wrong is not None:
                yield wrong
                return

    def _difference(self) -> str | None:
        """Return how the request differs from the model; None if it does not."""
        absent = self._needed and self._granted is None and not self._asked
        awaits = self._not_before if absent else None
        wrong = unequal(
            {
                "identity": (self._ledger.current, self._granted),
                "when it may be asked for": (self._request.awaits, awaits),
            }
        )
        if wrong is not None:
            return wrong
        error = self._request.error
        if self._refusal is None:
            return differs("why there is no identity", error, None)
        kind, words = self._refusal
        if type(error) is kind and words in str(error):
            return None
        return f"why there is no identity: told {error!r}, expected {kind.__name__} with {words!r}"

    def _ask(self) -> str | None:
        """Let the request be made, if it may be, and return what is wrong with it."""
        known, linked = self._dice.random() < 0.9, self._dice.random() < 0.9
        self._metadata.refreshed_at = self._now if known else None
        self._surroundings.wires = {None: Wire(5)} if linked else {}
        may = self._needed and self._granted is None and self._now >= self._not_before
        self._asked = may and known and linked
        self._request.ask(self._now)
        due = [steps.InitProducerId(5, self._surroundings.token)] if self._asked else []
        kinds = [RequestKind.INIT_PRODUCER_ID] * len(due)
        return unequal(
            {
                "requests": (typed(self._surroundings.asked), typed(due)),
                "their kinds": (self._surroundings.kinds, kinds),
            }
        )

    def _pause(self) -> None:
        """Note a failure: the next attempt is made after a back-off."""
        self._asked = False
        self._not_before = self._now + min(_FIRST * 2**self._failures, _LONGEST)
        self._failures += 1

    def _fail(self) -> str | None:
        self._request.failed(self._now)
        self._pause()
        return None

    def _answer(self) -> str | None:
        dice, wire = self._dice, Wire()
        code = dice.choice((*_CODES, dice.choice(list(ErrorCode))))
        granted = dice.choice(((0, 0), (7, 3), (8, 0), (-1, 0), (3, -1), self._taken or (9, 9)))
        answer = ProducerIdAnswer(code, *granted, dice.choice((0, 90)))
        returned = self._request.on_answer(cast("Any", wire), answer, self._now)
        wrong = differs("throttle times", wire.throttles, [(answer.throttle_ms, self._now)])
        if wrong is not None:
            return wrong
        if not code and min(granted) >= 0 and granted != self._taken:
            self._granted, self._asked, self._failures = granted, False, 0
            self._refusal = None
            return differs("error after a success", returned, None)
        self._pause()
        passes = code in (0, -1) or (code in list(ErrorCode) and ErrorCode(code).retriable)
        if not passes:
            words = _RIGHTS.get(ErrorCode(code), "InitProducerId")
            self._refusal = errors.error_for_code(code), words
        if (returned is None) is not passes or (returned and returned is not self._request.error):
            due = "none" if passes else f"{self._request.error!r}"
            return f"error for waiting records after code {code}: told {returned!r}, expected {due}"
        return None

    def _change(self) -> str | None:
        """Do what other parts of the producer do to its identity, and to the reason."""
        match self._dice.randrange(3):
            case 0 if self._ledger.state is IdentityState.READY:
                shared = self._dice.random() < 0.7
                self._taken = self._granted if shared else None
                self._ledger.disown(shared=shared)
                self._granted = None
            case 1:
                self._request.forget_cluster()
                self._not_before, self._refusal = 0.0, None
            case 2:
                told = self._dice.choice((None, errors.KafkaConnectionError("told so")))
                self._request.report(told)
                self._refusal = None if told is None else (type(told), "told so")
        return None
