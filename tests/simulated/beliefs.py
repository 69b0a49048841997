"""The judge of beliefs: what a producer holds true of brokers is what their answers have said.

A wrong belief shows itself late, if at all: as a request to an old leader, as evidence that proves
too much, or as a producer id that is used when brokers have forgotten it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from aioidem._engine import ProducerCore, steps
from aioidem._engine.topic_view import TopicView
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.produce import ProduceAnswer

from .decoding import all_records, answered_batches

__all__ = ["Beliefs"]

_Place = tuple[str, int]


class Beliefs:
    """Judges what an engine has learned from each answer.

    Args:
        core: The engine.
        complain: Is told what is wrong.
    """

    def __init__(self, core: ProducerCore, complain: Callable[[str], None]) -> None:
        self._core = core
        self._complain = complain
        self._epochs: dict[tuple[TopicView, int], int] = {}
        # Seconds after which each broker of a cluster forgets a producer, by its number.
        self._expirations: dict[int, float] = {}

    # -- metadata ----------------------------------------------------------------------------------

    def heard_of(self, topics: Iterable[str]) -> None:
        """Judge what is known of topics after an answer: no leader epoch is older than before."""
        for name in topics:
            view = self._core.cluster.topics.get(name)
            for index in () if view is None else list(view.leaders):
                known = self._core.cluster.leader_of(name, index)
                if view is None or known is None:
                    continue
                before = self._epochs.get((view, index), -1)
                if known.leader_epoch < before:
                    self._complain(
                        f"{name}-{index} has leader epoch {known.leader_epoch} after {before}"
                    )
                self._epochs[view, index] = known.leader_epoch

    # -- brokers -----------------------------------------------------------------------------------

    def configured(self, node_id: int, facts: BrokerFacts) -> None:
        """Judge after what time brokers forget producers: the shortest time that one has told."""
        inside: Any = self._core
        fixed = self._core.config.producer_id_expiration
        if facts.expiration is not None:
            self._expirations[node_id] = facts.expiration
        told = self._expirations.values() if fixed is None else [fixed]
        known = inside._inquiries.expiration
        if told and known != min(told):
            self._complain(f"brokers forget producers after {min(told)} s, and {known} s counts")

    def other_cluster(self) -> None:
        """Note that the producer has gone to another cluster, whose brokers are others."""
        self._expirations.clear()

    # -- the log -----------------------------------------------------------------------------------

    def ends(self, step: steps.SendProduce) -> dict[_Place, int]:
        """Return the last offset that is known of each partition, before an answer is taken.

        Partitions whose batch is over already are left out: its answer says nothing any more.
        """
        found = {}
        for topic in step.topics:
            for index, data in topic.partitions:
                state = self._core.partitions.get((topic.name, index))
                if state is not None and any(b.data == data for b in state.batches.unresolved):
                    found[topic.name, index] = state.log.offset
        return found

    def acknowledged(
        self,
        step: steps.SendProduce,
        answer: ProduceAnswer,
        before: dict[_Place, int],
    ) -> None:
        """Judge the last offset that is known of each partition, after an answer was taken.

        It is that of the batch that the answer acknowledges, or, if the batch was known to be
        stored before, that of a later one.

        Args:
            step: The request.
            answer: The answer.
            before: What `ends` has returned before the answer was taken.
        """
        for place, data, part in answered_batches(step, answer):
            state = self._core.partitions.get(place)
            if part.error_code or part.base_offset < 0 or place not in before or state is None:
                continue
            last = part.base_offset + len(all_records(data)) - 1
            end = state.log.offset
            if end != last and not end == before[place] > last:
                self._complain(
                    f"{place[0]}-{place[1]} is known to end at offset {end} after "
                    f"{before[place]}, and after a batch that ends at {last}"
                )
