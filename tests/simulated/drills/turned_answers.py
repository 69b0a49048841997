"""The brokers of the drill of an engine: what they answer, and what an answer must have changed.

They are simple: they keep nothing but which topics there are and who leads them. What they answer
to a batch is chosen at random. An answer reaches the part of the engine that has asked; what that
part must know afterwards is stated here, for each kind of request.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final
from uuid import UUID

from aioidem._engine import steps
from aioidem._engine.core import ProducerCore
from aioidem._engine.requests import Outstanding
from aioidem._protocol.add_offsets import AddOffsetsAnswer
from aioidem._protocol.add_partitions import AddPartitionsAnswer
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.end_txn import EndTxnAnswer
from aioidem._protocol.find_coordinator import CoordinatorAnswer
from aioidem._protocol.metadata import BrokerAddress, MetadataUpdate, PartitionUpdate, TopicUpdate
from aioidem._protocol.produce import PartitionAnswer, ProduceAnswer
from aioidem._protocol.producer_id import ProducerIdAnswer
from aioidem._protocol.producers import ProducersAnswer
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._protocol.topic_config import TopicConfig
from aioidem._protocol.txn_offset_commit import TxnOffsetCommitAnswer

__all__ = ["FATAL", "HOME", "MALFORMED", "Brokers", "wrong_after_answer"]

HOME: Final = "home"
_AWAY: Final = "away"
FATAL: Final = 31
"""CLUSTER_AUTHORIZATION_FAILED, which ends the producer."""
_NOT_LEADER: Final = 6
_OUT_OF_ORDER: Final = 45
_REFUSALS: Final = (3, 6, 6, 7, 10, 19, 19, 20, 45, 45, 46, 47, 56, 59, 87, FATAL)
"""Error codes of batches: passing and lasting ones, about a size, or about the producer."""
_COORDINATOR_CODES: Final = (14, 15, 16, 16, 51, 51, 47, 49, 7)
"""Error codes of coordinators: passing and lasting ones."""
_STRAY: Final = 77
"""A partition that no request carries."""
MALFORMED: Final = b"\0" * 11 + b"\1" * 60
"""A page of a log that is no page."""


class Brokers:
    """Two brokers, and their topics.

    Attributes:
        leaders: by topic and partition, the broker that leads it and the leader epoch.
        codes: by topic, the error code in answers to Metadata; topics without one are described.
        generation: how often topics were recreated, each time with other ids.
        named_config: whether topics have the config that lets answers name the window.
        out_of_order: how many of the next batches are refused for their sequence.
        well: whether nothing fails now.
        stray: whether the last answer to Produce names a partition that was not in the request.
        fatal: whether the last answer to Produce ends the producer.
    """

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.leaders = {("t", 0): (1, 0), ("t", 1): (1, 0), ("u", 0): (2, 0)}
        self.codes: dict[str, int] = {"u": 3}
        self.named_config = True
        self.out_of_order = 0
        self.well = False
        self.stray = self.fatal = False
        self.generation = 0
        self._favourite = dice.choice((6, 19, 45, 45, 45, 10))
        self._next_pid = 4000
        self._offset = 0

    def _id(self, topic: str) -> UUID:
        return UUID(int=100 * self.generation + ord(topic))

    def _throttle(self) -> int:
        return self._dice.choice((0, 0, 0, 125) if self.well else (0, 0, 0, 250, 500, 3000))

    def _fails(self, one_in: int) -> bool:
        """Return whether something fails now, which it does once in so many times."""
        return not self.well and self._dice.randrange(one_in) == 0

    def answer(self, step: steps.Request, core: ProducerCore) -> Any:
        """Return the answer to a request."""
        dice, link = self._dice, core.connections.links[step.link_id]
        cluster = _AWAY if link.node_id > 0 and self._fails(12) else HOME
        match step:
            case steps.SendProduce():
                return self._produced(step)
            case steps.AskCluster():
                return cluster
            case steps.FetchMetadata():
                return self._metadata(step.topics, cluster)
            case steps.InitProducerId():
                return self._granted()
            case steps.DescribeTopicConfig():
                code = 29 if self._fails(4) else 0
                return TopicConfig(code, names_window=not code and self.named_config)
            case steps.DescribeTopicLimit():
                return dice.choice((None, 300, 2000))
            case steps.DescribeBrokerConfig():
                return BrokerFacts(dice.choice((None, 5.0, 600.0)), dice.choice((None, 4)))
            case steps.AskProducers():
                code = dice.choice((3, 29)) if self._fails(3) else 0
                last = {4001: (dice.randrange(2), dice.randrange(4))} if dice.random() < 0.7 else {}
                return ProducersAnswer(code, {} if code else last, self._throttle())
            case steps.ReadBack():
                return self._page(step)
            case _:
                return self._called(step, core)

    def _produced(self, step: steps.SendProduce) -> ProduceAnswer:
        self.stray, self.fatal = self._fails(40), False
        parts = []
        for topic in step.topics:
            for index, _ in topic.partitions:
                if self._fails(40):
                    continue  # the answer leaves it out
                code = self._code()
                self.fatal |= code == FATAL
                parts.append(self._entry(step, topic, index, code))
            if self.stray:
                parts.append(self._entry(step, topic, _STRAY, 0))
        wait = 0 if self.well else self._throttle()
        return ProduceAnswer(tuple(parts), wait)

    def _code(self) -> int:
        if self.out_of_order:
            self.out_of_order -= 1
            return _OUT_OF_ORDER
        return self._refusal() if self._fails(4) else 0

    def _refusal(self) -> int:
        return self._favourite if self._dice.random() < 0.6 else self._dice.choice(_REFUSALS)

    def _entry(
        self, step: steps.SendProduce, topic: steps.TopicData, index: int, code: int
    ) -> PartitionAnswer:
        by_id, offset = step.version >= 13, -1
        if not code:
            offset, self._offset = self._offset, self._offset + 100
        retained = self._dice.choice((5, 5, 2, 20)) if step.version >= 14 else None
        name, known = (None, topic.topic_id) if by_id else (topic.name, None)
        return PartitionAnswer(name, known, index, code, offset, retained=retained)

    def _metadata(self, topics: tuple[str, ...], cluster: str) -> MetadataUpdate:
        updates = []
        for name in topics:
            code = self.codes.get(name, 0)
            parts = [
                PartitionUpdate(index, *leader)
                for (topic, index), leader in self.leaders.items()
                if topic == name and not code
            ]
            if not parts:
                code = code or 3
            updates.append(TopicUpdate(name, None if code else self._id(name), code, tuple(parts)))
        brokers = tuple(BrokerAddress(number, f"b{number}", 9092) for number in (1, 2))
        return MetadataUpdate(cluster, brokers, tuple(updates), self._throttle())

    def _granted(self) -> ProducerIdAnswer:
        code = self._dice.choice((31, 53, -1, 0)) if self._fails(2) else 0
        self._next_pid += 1
        granted = (-1, -1) if code or self._fails(8) else (self._next_pid, 0)
        return ProducerIdAnswer(code, *granted, self._throttle())

    def _page(self, step: steps.ReadBack) -> ReadBackAnswer:
        dice = self._dice
        code = dice.choice((1, _NOT_LEADER)) if self._fails(4) else 0
        end = step.offset + dice.choice((0, 0, 1, 5))
        page = MALFORMED if self._fails(8) else b""
        return ReadBackAnswer(code, end, page, self._throttle())

    def _called(self, step: steps.Request, core: ProducerCore) -> Any:
        code = self._dice.choice(_COORDINATOR_CODES) if self._fails(5) else 0
        wait, current = self._throttle(), core.current_identity
        now = (4000, -1) if current is None else (current.producer_id, current.epoch)
        after = (-1, -1) if code else (now[0], now[1] + 1)
        match step:
            case steps.FindCoordinator():
                where = (-1, "", -1) if code else (1, "b1", 9092)
                return CoordinatorAnswer(code, *where, wait)
            case steps.InitTransactions():
                return ProducerIdAnswer(code, *after, wait)
            case steps.AddPartitions():
                return AddPartitionsAnswer(dict.fromkeys(step.partitions, code), wait)
            case steps.CommitOffsets():
                return TxnOffsetCommitAnswer(dict.fromkeys(step.offsets, code), wait)
            case steps.EndTransaction():
                return EndTxnAnswer(code, *(after if step.v2 else (-1, -1)), wait)
            case _:
                return AddOffsetsAnswer(code, wait)


def wrong_after_answer(
    core: ProducerCore, step: steps.Request, asked: Outstanding, answer: Any, now: float
) -> Iterator[str]:
    """Yield what the part of the engine that has asked does not know after the answer.

    Args:
        core: the engine.
        step: the request.
        asked: what the engine kept of it.
        answer: the answer.
        now: seconds.
    """
    link = core.connections.links.get(step.link_id)
    if link is None:
        yield f"connection {step.link_id} has ended with a proper answer to {step}"
        return
    if link.last_progress != now or step.token in link.outstanding:
        facts = f"last progress {link.last_progress}, now {now}, requests {[*link.outstanding]}"
        yield f"the answer to request {step.token} was not taken: {facts}"
    wait = getattr(answer, "throttle_ms", 0) / 1000.0
    if wait and link.throttled_until < now + wait:
        yield f"throttled for {wait} s at {now}, and the pause ends at {link.throttled_until}"
    match step:
        case steps.AskCluster() | steps.FetchMetadata():
            cluster = answer if isinstance(answer, str) else answer.cluster_id
            if not link.identified or link.cluster_id != cluster:
                yield f"the connection leads to {cluster}, and is known for {link.cluster_id}"
            if isinstance(answer, MetadataUpdate):
                yield from _metadata_unknown(core, answer, now)
        case steps.InitProducerId():
            yield from _grant_unknown(core, answer)
        case steps.InitTransactions():
            current = core.current_identity
            told = (answer.producer_id, answer.producer_epoch)
            if not answer.error_code and (current is None or tuple(current) != told):
                yield f"the identity {told} is granted, and {current} is used"
        case steps.AskProducers():
            if answer.error_code not in {0, 3} and link.knows_producers:
                yield "DescribeProducers was refused, and is asked again"
        case steps.DescribeTopicConfig():
            if link.discovery.speaks is not answer.names_window:
                due, why = answer.names_window, link.discovery.reason
                yield f"Produce v14 is used: {not due}, not {due}; {why}"
        case steps.DescribeTopicLimit():
            if asked.topic_limit is None or asked.topic_limit.told != answer:
                limit = None if asked.topic_limit is None else asked.topic_limit.told
                yield f"the limit of {step.topic} is {limit}, not {answer}"


def _metadata_unknown(core: ProducerCore, answer: MetadataUpdate, now: float) -> Iterator[str]:
    """Yield what the engine does not know after an answer to Metadata."""
    refresher = core.metadata
    if refresher.in_flight:
        yield "Metadata was answered, and the request is still in flight"
    if answer.cluster_id != HOME:
        if not refresher.wanted:
            yield f"metadata of {answer.cluster_id} came, and that of {HOME} is not wanted any more"
        return
    if refresher.refreshed_at != now or not core.knows_cluster:
        facts = f"refreshed at {refresher.refreshed_at}, cluster known: {core.knows_cluster}"
        yield f"metadata came at {now}, and is {facts}"
    for topic in answer.topics:
        if topic.error_code:
            continue
        for part in topic.partitions:
            known = core.cluster.leader_of(topic.name, part.index)
            if known is None or known.leader_epoch < part.leader_epoch:
                yield f"the leader of {topic.name}-{part.index} is {known}, and {part} came"


def _grant_unknown(core: ProducerCore, answer: ProducerIdAnswer) -> Iterator[str]:
    """Yield what the engine does not know after an answer to InitProducerId."""
    current, granted = core.current_identity, (answer.producer_id, answer.producer_epoch)
    if min(granted) >= 0 and not answer.error_code:
        if current is None or (current.producer_id, current.epoch) != granted:
            yield f"the producer id {granted} is granted, and {current} is used"
        if core.identity_error is not None:
            yield f"a producer id is granted, and a refusal is still told: {core.identity_error!r}"
    elif current is not None:
        yield f"no producer id is granted by {answer}, and {current} is used"
    elif answer.error_code > 0 and (core.identity_error is None or core.unsettled):
        told = f"the error is {core.identity_error!r}, and {core.unsettled} records wait, not 0"
        yield f"a producer id is refused with {answer.error_code}: {told}"
