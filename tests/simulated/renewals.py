"""The judge of renewals: a transactional producer requests another epoch if it must, and only then.

A request that is late may begin a transaction that nobody ends, or be taken for one of the next
transaction. Another epoch fences it (KIP-360, KIP-890). But each InitProducerId costs a round trip
before a transaction, and one without a reason would be paid by everybody.

The reasons are derived from the calls to coordinators, their answers and connections that end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from aioidem._engine import steps
from aioidem._engine.topic_view import TopicView

__all__ = ["Renewals"]

_WITHIN = (steps.AddPartitions, steps.AddOffsets, steps.CommitOffsets)
"""The calls that belong to a transaction."""

_FENCED_LATER = (*_WITHIN, steps.EndTransaction)
"""The calls that may still be carried out if they were written and have no answer."""


class Renewals:
    """Judges when one producer requests another epoch.

    Args:
        failures: Returns how many records have failed so far.
        complain: Is told what is wrong.
    """

    def __init__(self, failures: Callable[[], int], complain: Callable[[str], None]) -> None:
        self._failures = failures
        self._complain = complain
        # Why another epoch must be requested before the next transaction; and whether it may be,
        # also for records that have failed since one was granted.
        self._must: str | None = None
        # Why one must be requested when the next transaction has ended, and may be before.
        self._then: str | None = None
        self._may = True
        self._failed = 0
        # Whether the last transaction has ended, so that the next call belongs to another.
        self._ended = False
        self._v2: bool | None = None
        # By connection and token: the calls without an answer.
        self._open: dict[tuple[int, int], steps.CoordinatorStep] = {}
        self._ids: dict[str, UUID | None] = {}
        # The topics to which batches were sent under the present epoch, and under any.
        self._numbered: set[str] = set()
        self._written: set[str] = set()

    # -- what the producer does --------------------------------------------------------------------

    def asks(self, step: steps.Step) -> None:
        """Judge a step of the engine."""
        if isinstance(step, steps.CoordinatorStep):
            self._open[step.link_id, step.token] = step
        if isinstance(step, steps.InitTransactions):
            due = self._must is not None or self._then is not None
            may = self._may or due or self._failures() != self._failed
            if step.existing is not None and not may:
                self._complain("another epoch is requested, and nothing asks for it")
            if step.existing is None:
                self._must = self._then = None  # whoever has the id, all before is fenced
        elif isinstance(step, (steps.AddPartitions, steps.AddOffsets)):
            self._v2 = False
        elif isinstance(step, (steps.CommitOffsets, steps.EndTransaction)):
            self._v2 = step.v2
        if isinstance(step, _WITHIN):
            self._belongs()
        elif isinstance(step, steps.SendProduce) and step.transactional_id is not None:
            self._belongs()
            names = {topic.name for topic in step.topics}
            self._numbered |= names
            self._written |= names
        elif isinstance(step, steps.EndTransaction) and not step.commit:
            self._may = True
        elif isinstance(step, steps.CloseLink):
            self.lost(step.link_id, ())

    def _belongs(self) -> None:
        if self._ended and self._must is not None:
            self._complain(
                f"a transaction begins under the epoch of the last one, but {self._must}"
            )
        self._ended = False

    # -- what becomes of it ------------------------------------------------------------------------

    def answered(self, step: steps.Request, answer: Any) -> None:
        """Note an answer that the engine has waited for."""
        if self._open.pop((step.link_id, step.token), None) is None:
            if isinstance(step, steps.SendProduce):
                self._may |= any(part.error_code for part in answer.partitions)
            return
        if isinstance(step, (steps.AddPartitions, steps.CommitOffsets)):
            self._may |= any(answer.error_codes.values())
            return
        self._may |= bool(answer.error_code)
        if isinstance(step, steps.InitTransactions):
            if not answer.error_code and answer.producer_id >= 0:
                self._granted()
        elif isinstance(step, steps.EndTransaction):
            self._on_end(step, answer)

    def _on_end(self, step: steps.EndTransaction, answer: Any) -> None:
        if not answer.error_code and step.v2 and answer.producer_id >= 0:
            self._granted()
        if not answer.error_code:
            self._ended = True
            self._must, self._then = self._must or self._then, None
            if step.v2 and answer.producer_id < 0:
                self._must = "the answer to EndTxn has named no epoch"
        elif not step.commit and step.v2 and answer.error_code == ErrorCode.invalid_txn_state:
            self._ended = True
            self._must = self._must or "an abort was answered INVALID_TXN_STATE"

    def _granted(self) -> None:
        self._must, self._may, self._failed = None, False, self._failures()
        self._then = None
        self._ended = False
        self._numbered.clear()

    def lost(self, link_id: int, unwritten: Collection[int]) -> None:
        """Note that a connection ended: calls without an answer may still be carried out.

        Args:
            link_id: The connection.
            unwritten: The tokens of the requests of which no byte was written.
        """
        self._may = True
        for key in [each for each in self._open if each[0] == link_id]:
            step = self._open.pop(key)
            written = key[1] not in unwritten and isinstance(step, _FENCED_LATER)
            if written and self._v2 is False:
                self._must = self._must or f"nobody knows what became of a {type(step).__name__}"

    def described(self, topics: Mapping[str, TopicView]) -> None:
        """Note what is known of topics after a Metadata answer."""
        for name, view in topics.items():
            before = self._ids.get(name)
            if before is not None and view.topic_id not in (None, before):
                self.recreated(name)
        self._ids = {name: view.topic_id for name, view in topics.items()}

    def recreated(self, topic: str) -> None:
        """Note that the producer was told that a topic is another one than before.

        Without batches for it in the present epoch, a transaction that begins later can write to
        it under this epoch.
        """
        known = self._v2 is False and topic in self._written
        if topic in self._numbered or (known and not self._ended):
            self._must = self._must or f"{topic} was recreated"
        elif known:
            self._then = f"{topic} was recreated"
        self._may = True
