"""The judge of conduct: requests that nothing asks for, and answers that are taken for others.

A producer that asks needlessly, or goes on after an answer that cannot be one, may still deliver
each record once and in order, so no other judge would notice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from uuid import UUID

from aioidem._engine import steps
from aioidem._protocol.produce import ProduceAnswer
from aioidem.errors import ProtocolError

__all__ = ["Conduct"]

_NOBODY = UUID(int=0)

_Place = tuple[str, int]


class Conduct:
    """Judges what a producer asks of brokers, and how it takes their answers to Produce.

    Args:
        was_in_doubt: Returns whether a record of a partition has ever been in doubt; None if that
            is not known.
        complain: Is told what is wrong.
    """

    def __init__(
        self,
        was_in_doubt: Callable[[_Place], bool] | None,
        complain: Callable[[str], None],
    ) -> None:
        self._was_in_doubt = was_in_doubt
        self._complain = complain

    # -- what the producer asks --------------------------------------------------------------------

    def acts(self, step: steps.Step) -> None:
        """Note what the engine tells the Sender to do."""
        match step:
            case steps.AskProducers(_, _, topic, partition):
                self._ask(topic, partition, "DescribeProducers")
            case steps.ReadBack(_, _, topic, _, partition):
                self._ask(topic, partition, "Fetch")
            case _:
                pass

    def _ask(self, topic: str, partition: int, request: str) -> None:
        if self._was_in_doubt is not None and not self._was_in_doubt((topic, partition)):
            self._complain(f"{request} for {topic}-{partition}, of which nothing was in doubt")

    # -- how it takes answers ----------------------------------------------------------------------

    def produced(
        self, step: steps.SendProduce, answer: ProduceAnswer, odd: ProtocolError | None
    ) -> None:
        """Note an answer to Produce that the engine has waited for, and what it finds odd in it."""
        names = {topic.topic_id: topic.name for topic in step.topics if topic.topic_id is not None}
        asked = {(topic.name, index) for topic in step.topics for index, _ in topic.partitions}
        told = Counter(
            (part.topic or names.get(part.topic_id or _NOBODY), part.partition)
            for part in answer.partitions
        )
        strange = told.keys() - asked or [place for place, times in told.items() if times > 1]
        if strange and odd is None:
            self._complain("an answer that names other partitions than its request is taken")
        elif odd is not None and not strange:
            self._complain(f"an answer is refused that names the partitions of its request: {odd}")
