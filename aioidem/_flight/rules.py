"""WireRules: what an engine may never send, judged on the batches that a replayed engine sends.

There are two rules, which a broker relies on when it deduplicates:

- The span of a partition (its batches from the oldest without an outcome to the newest one sent,
  both included) is within the window when a new batch is sent.
- A batch that may have been appended keeps its producer id, epoch and sequence, unless the option
  `in_doubt="resend"` permits a duplicate.

The judge keeps its own notes of what was sent, and asks the engine for nothing but the batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aioidem._config import ProducerConfig
from aioidem._engine.batch import Batch
from aioidem._engine.partition import PartitionState
from aioidem._engine.requests import Outstanding
from aioidem._engine.route import Route
from aioidem._engine.windows import DEFAULT_BATCHES_RETAINED, MAX_BATCHES_RETAINED
from aioidem._protocol.produce import ProduceAnswer

__all__ = ["WireRules"]


class WireRules:
    """Judges the batches that an engine sends.

    Args:
        config: the engine's options.
        states: the partitions at the beginning.
    """

    def __init__(self, config: ProducerConfig, states: Iterable[PartitionState]) -> None:
        self._spans = config.enable_idempotence and config.broker_dedup == "window"
        self._keeps = config.enable_idempotence and config.in_doubt == "fail"
        # By the identity of a batch: the batch, and its producer id, epoch and base sequence.
        self._stamps: dict[int, tuple[Batch, tuple[Any, int]]] = {}
        # By partition: the way to its leader, and the window that the leader has named there.
        self._windows: dict[PartitionState, tuple[Route | None, int]] = {}
        # The partitions of which a batch was divided: its parts count for the span, and were not
        # sent as one batch each when the window was looked at.
        self._split: set[PartitionState] = set()
        self._highest: dict[PartitionState, int] = {}
        for state in states:
            self._windows[state] = state.leadership.route, state.window.limit
            for batch in state.batches.unresolved:
                self._stamps[id(batch)] = batch, (batch.identity, batch.base)
                self._highest[state] = batch.ordinal

    def answered(self, request: Outstanding, answer: ProduceAnswer) -> None:
        """Note the windows that a leader names in an answer.

        Args:
            request: the request that is answered.
            answer: the answer.
        """
        for part in answer.partitions:
            name = part.topic
            if name is None and part.topic_id is not None:
                name = request.names.get(part.topic_id)
            entry = None if name is None else request.entries.get((name, part.partition))
            if entry is not None and not part.error_code:
                retained = DEFAULT_BATCHES_RETAINED if part.retained is None else part.retained
                most = max(1, min(retained, MAX_BATCHES_RETAINED))
                self._windows[entry[0]] = entry[0].leadership.route, most

    def _window(self, state: PartitionState) -> int:
        route = state.leadership.route
        before, most = self._windows.get(state, (None, DEFAULT_BATCHES_RETAINED))
        if before != route:  # a new connection or leader, which has named no window yet
            most = DEFAULT_BATCHES_RETAINED
            self._windows[state] = route, most
        return most

    def judge(self, sent: Iterable[PartitionState]) -> list[str]:
        """Return what is wrong with the batches of one poll.

        Args:
            sent: the partition of each batch that the poll sent.
        """
        wrong: list[str] = []
        for state in dict.fromkeys(sent):
            new, window = False, self._window(state)
            for batch in state.batches.unresolved:
                stamp = batch.identity, batch.base
                before = self._stamps.get(id(batch))
                if before is None and batch.attempts == 1:
                    new = True
                    if batch.ordinal <= self._highest.get(state, -1):
                        self._split.add(state)  # a part of a batch that was divided
                    self._highest[state] = batch.ordinal
                self._stamps[id(batch)] = batch, stamp
                if before is None or before[1] == stamp or not self._keeps:
                    continue
                if batch.doubted_at is not None:
                    wrong.append(
                        f"{state.where}: a batch that may have been appended got a new identity: "
                        f"{before[1]} before, {stamp} now"
                    )
            if len(state.batches.unresolved) <= 1:
                self._split.discard(state)
            span = state.batches.span
            if new and self._spans and span > window and state not in self._split:
                wrong.append(
                    f"{state.where}: {span} batches from the oldest without an outcome to "
                    f"the newest one sent; the window is {window}"
                )
        if len(self._stamps) > 10_000:
            self._stamps = {key: kept for key, kept in self._stamps.items() if not kept[0].settled}
        return wrong
