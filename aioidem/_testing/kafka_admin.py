"""Administration of a `KafkaCluster`: topics, their configs, their leaders and replicas.

A method that changes something returns when every running broker knows of the change, so that a
test can rely on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
from kio.schema.errors import ErrorCode

from aioidem._broker.entities import from_ms
from aioidem._protocol.versions import ApiKey
from aioidem._testing.kafka_broker import KafkaBroker
from aioidem._testing.kafka_questions import POLL_SECONDS, KafkaQuestions
from aioidem.errors import (
    BrokerResponseError,
    KafkaConnectionError,
    KafkaError,
    ProtocolError,
    broker_error,
)

__all__ = ["KafkaAdmin"]

_CREATE_TOPICS: Final = (ApiKey.CREATE_TOPICS, 7)
_DELETE_TOPICS: Final = (ApiKey.DELETE_TOPICS, 6)
_ELECT_LEADERS: Final = (43, 2)
_ALTER_CONFIGS: Final = (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)
_REASSIGN: Final = (45, 0)
_DESCRIBE_QUORUM: Final = (55, 1)
_LIST_OFFSETS: Final = (ApiKey.LIST_OFFSETS, 7)
_EARLIEST: Final = -2
_TOPIC_RESOURCE: Final = 2
_METADATA_LOG: Final = "__cluster_metadata"
_PREFERRED, _UNCLEAN = 0, 1
_CONTROLLER_TIME: Final = from_ms(10_000)


class KafkaAdmin:
    """Changes the topics of one cluster, and waits until its brokers know of the change.

    Args:
        brokers: The brokers; the list may grow until the cluster has started.
        count: How many brokers the cluster has once it has started.
        timeout: Seconds to wait until the brokers know of a change.
    """

    def __init__(self, brokers: Sequence[KafkaBroker], count: int, timeout: float) -> None:
        self._brokers = brokers
        self._count = count
        self._timeout = timeout
        self.questions = KafkaQuestions(brokers, timeout)

    async def ask(self, /, api_key: int, version: int, *, broker: int = 0, **fields: Any) -> Any:
        """Send one request to a broker, and return the response as kio's object.

        The request bypasses the proxy that stands between clients and the broker.

        Args:
            api_key: API of the request.
            version: Version of the request.
            broker: Id of the broker.
            fields: Fields of the request; nested entities are mappings.

        Raises:
            KafkaConnectionError: The broker cannot be reached, closed the connection, or did not
                respond within 10 seconds.
        """
        return await self.questions.ask(self._brokers[broker], api_key, version, fields)

    async def controller(self) -> int:
        """Return the id of the active controller; -1 if no running broker names one.

        The brokers are asked one after another; each has 10 seconds to answer.

        Raises:
            KafkaError: No broker runs.
        """
        asked = {"topic_name": _METADATA_LOG, "partitions": [{"partition_index": 0}]}
        for broker in self.questions.responsive():
            with suppress(KafkaConnectionError, ProtocolError):
                answer = await self.questions.ask(broker, *_DESCRIBE_QUORUM, {"topics": [asked]})
                if answer.error_code == ErrorCode.none:
                    return int(answer.topics[0].partitions[0].leader_id)
        return -1

    # -- topics -----------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        configs: Mapping[str, str | int] | None = None,
        replicas: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Create a topic, and wait until every running broker knows its leaders and leads its own.

        Args:
            name: Name of the topic.
            partitions: How many partitions.
            replication: How many replicas; None: one on each broker, three at most.
            configs: Configs of the topic.
            replicas: Ids of the brokers of each partition, the leader first; used instead of
                ``partitions`` and ``replication``.

        Raises:
            BrokerResponseError: The cluster refuses.
            KafkaError: The brokers do not know all leaders in time.
        """
        placed = [
            {"partition_index": partition, "broker_ids": brokers}
            for partition, brokers in enumerate(replicas or ())
        ]
        partitions = len(placed) or partitions
        topic = {
            "name": name,
            "num_partitions": -1 if placed else partitions,
            "replication_factor": -1 if placed else replication or min(self._count, 3),
            "assignments": placed,
            "configs": [
                {"name": key, "value": str(value)} for key, value in (configs or {}).items()
            ],
        }
        created = await self._ask_to_create(topic)
        # The controller refuses to place replicas on a fenced broker. A broker that has just
        # started is fenced for a short time; one that does not run stays fenced, so then the
        # first refusal is final.
        all_run = len(self.questions.responsive()) == self._count
        with anyio.move_on_after(self._timeout if all_run else 0):
            while created.error_code == ErrorCode.invalid_replica_assignment:
                await anyio.sleep(POLL_SECONDS)
                created = await self._ask_to_create(topic)
        _raise_for(created, f"topic {name!r} was not created")
        for each in self._brokers:
            if each.proxy.retention is not None:
                each.proxy.retention.learn(name, created.topic_id)
        for broker in self.questions.responsive():
            await self.questions.until(
                partial(self._all_led, broker, name, partitions),
                f"broker {broker.node_id} does not know all leaders of {name!r}",
            )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic.

        Raises:
            BrokerResponseError: The cluster refuses.
        """
        answer = await self.questions.ask_any(
            *_DELETE_TOPICS, topics=[{"name": name, "topic_id": None}], timeout=_CONTROLLER_TIME
        )
        _raise_for(answer.responses[0], f"topic {name!r} was not deleted")

    async def set_config(self, topic: str, name: str, value: str | int) -> None:
        """Set one config of a topic.

        Raises:
            BrokerResponseError: The cluster refuses.
        """
        resource = {
            "resource_type": _TOPIC_RESOURCE,
            "resource_name": topic,
            "configs": [{"name": name, "config_operation": 0, "value": str(value)}],
        }
        answer = await self.questions.ask_any(
            *_ALTER_CONFIGS, resources=[resource], validate_only=False
        )
        _raise_for(answer.responses[0], f"{name} of {topic!r} was not set")

    async def _ask_to_create(self, topic: dict[str, Any]) -> Any:
        answer = await self.questions.ask_any(
            *_CREATE_TOPICS, topics=[topic], timeout=_CONTROLLER_TIME, validate_only=False
        )
        return answer.topics[0]

    async def _all_led(self, broker: KafkaBroker, topic: str, partitions: int) -> bool:
        metadata = await self.questions.metadata(broker, topic)
        states = [] if metadata is None else [p for t in metadata.topics for p in t.partitions]
        if len(states) != partitions or any(each.leader_id < 0 for each in states):
            return False
        own = [int(p.partition_index) for p in states if p.leader_id == broker.node_id]
        return not own or await self._leads(broker, topic, own)

    async def _leads(self, broker: KafkaBroker, topic: str, own: Sequence[int]) -> bool:
        """Return whether a broker leads partitions that are its own according to Metadata.

        A broker tells clients of a new partition before it has opened the log, and meanwhile
        answers NOT_LEADER_OR_FOLLOWER to other requests.
        """
        asked = [{"partition_index": number, "timestamp": _EARLIEST} for number in own]
        fields = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": asked}],
        }
        try:
            answer = await self.questions.ask(broker, *_LIST_OFFSETS, fields)
        except (KafkaConnectionError, ProtocolError):
            return False
        told = [each for listed in answer.topics for each in listed.partitions]
        return all(each.error_code == ErrorCode.none for each in told)

    # -- leaders and replicas ---------------------------------------------------------------------

    async def leader(self, topic: str, partition: int = 0) -> int:
        """Return the leader's id; -1 if there is no leader or no such partition."""
        state = await self._state(topic, partition)
        return -1 if state is None else int(state.leader_id)

    async def in_sync(self, topic: str, partition: int = 0) -> frozenset[int]:
        """Return the ids of the replicas in sync; empty if there is no such partition."""
        state = await self._state(topic, partition)
        return frozenset() if state is None else frozenset(map(int, state.isr_nodes))

    async def until_in_sync(
        self, topic: str, partition: int = 0, *, brokers: Collection[int] | None = None
    ) -> None:
        """Wait until the in-sync replicas are those of ``brokers``; None: until all are in sync.

        A broker that was killed or paused leaves the in-sync replicas when its session of 3 seconds
        has ended.

        Raises:
            KafkaError: The in-sync replicas are not the wanted ones within the cluster's timeout.
        """
        wanted = None if brokers is None else frozenset(brokers)

        async def reached() -> bool:
            states = await self.questions.newest(topic, partition)
            return bool(states) and all(
                frozenset(map(int, state.isr_nodes))
                == (frozenset(map(int, state.replica_nodes)) if wanted is None else wanted)
                for state in states
            )

        await self.questions.until(
            reached, f"the replicas of {topic}-{partition} are not in sync as wanted"
        )

    async def move_leader(self, topic: str, partition: int, broker: int) -> None:
        """Make an in-sync replica the preferred one (first in the list), and elect it as leader.

        Raises:
            BrokerResponseError: The cluster refuses.
            KafkaError: The replica does not become the leader in time.
        """
        others = [each for each in await self._replicas(topic, partition) if each != broker]
        await self._place(topic, partition, [broker, *others])
        await self._elect(topic, partition, _PREFERRED)
        await self._until_led(topic, partition, broker)

    async def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Move a partition to the brokers ``replicas``, and wait until all of them are in sync.

        The first of ``replicas`` becomes the leader if the old leader is none of them.

        Raises:
            BrokerResponseError: The cluster refuses.
            KafkaError: The partition is not moved in time.
        """
        await self._place(topic, partition, replicas)

        async def moved() -> bool:
            return list(replicas) == await self._replicas(topic, partition)

        await self.questions.until(moved, f"{topic}-{partition} does not come to {list(replicas)}")
        await self.until_in_sync(topic, partition)

    async def elect_unclean(self, topic: str, partition: int = 0) -> int:
        """Elect a leader among replicas that are *not* in sync, when no other can be elected.

        Records that only the lost leader had are lost for good, acknowledged ones included.

        Returns:
            Id of the new leader.

        Raises:
            BrokerResponseError: The cluster refuses.
            KafkaError: No leader can be elected in time.
        """
        leader = -1

        async def led() -> bool:
            nonlocal leader
            with suppress(BrokerResponseError, KafkaConnectionError):
                await self._elect(topic, partition, _UNCLEAN)
            leader = await self.leader(topic, partition)
            return any(each.node_id == leader for each in self.questions.responsive())

        await self.questions.until(led, f"no broker can be elected to lead {topic}-{partition}")
        await self._until_led(topic, partition, leader)
        return leader

    async def _place(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        where = {"partition_index": partition, "replicas": replicas}
        answer = await self.questions.ask_any(
            *_REASSIGN, topics=[{"name": topic, "partitions": [where]}], timeout=_CONTROLLER_TIME
        )
        _raise_for(answer, "the controller was not reached")
        _raise_for(answer.responses[0].partitions[0], "the replicas could not be placed")

    async def _elect(self, topic: str, partition: int, kind: int) -> None:
        place = {"topic": topic, "partitions": [partition]}
        answer = await self.questions.ask_any(
            *_ELECT_LEADERS, election_type=kind, topic_partitions=[place], timeout=_CONTROLLER_TIME
        )
        for each in answer.replica_election_results:
            for result in each.partition_result:
                if result.error_code != ErrorCode.election_not_needed:
                    _raise_for(result, "the leader was not elected")

    async def _until_led(self, topic: str, partition: int, broker: int) -> None:
        for each in self.questions.responsive():
            await self.questions.until(
                partial(self._led_by, each, topic, partition, broker),
                f"broker {each.node_id} does not know that {broker} leads {topic}-{partition}",
            )

    async def _led_by(self, broker: KafkaBroker, topic: str, partition: int, leader: int) -> bool:
        state = await self.questions.partition(broker, topic, partition)
        return state is not None and state.leader_id == leader

    async def _state(self, topic: str, partition: int) -> Any:
        return next(iter(await self.questions.newest(topic, partition)), None)

    async def _replicas(self, topic: str, partition: int) -> list[int]:
        state = await self._state(topic, partition)
        if state is None:
            raise KafkaError(f"there is no partition {topic}-{partition}")
        return [int(each) for each in state.replica_nodes]


def _raise_for(result: Any, what: str) -> None:
    code = int(result.error_code)
    if code != ErrorCode.none:
        raise broker_error(code, f"{what}: {result.error_message}")
