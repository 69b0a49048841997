"""The simulated cluster on a virtual clock, with clients that pass bytes to it without sockets.

`VirtualCluster` owns a `ClusterState` and the time; `VirtualClient` is one connection. Every
request is encoded by kio's schemas and then decoded by the function that `ClusterServer` uses.
Every answer is encoded by that server's function and then decoded by kio's schemas. So a test runs
the same code as with a socket. Waiting for a timeout of a minute takes microseconds, and the same
calls give the same answers.

Rejected
    Passing entities to `ClusterState` without encoding them: a test would not notice an answer that
    cannot be encoded in the requested version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from aioidem._broker.decoding import read_request
from aioidem._broker.entities import Entity, build, from_ms
from aioidem._broker.requests import Delivery
from aioidem._broker.state import ClusterState
from aioidem._protocol.messages import (
    decode_response,
    encode_request,
    encode_response,
    request_type,
    response_type,
)
from aioidem._records import Codec, build_batch
from aioidem.errors import KafkaTimeoutError

__all__ = [
    "START_MS",
    "PlainRecord",
    "VirtualClient",
    "VirtualCluster",
    "idempotent_batch",
    "only_partition",
]

START_MS: Final = 1_750_000_000_000
"""The wall clock, in ms since the epoch, when the virtual clock shows 0."""


@dataclass(frozen=True, slots=True)
class PlainRecord:
    """A record from which a batch is built."""

    value: bytes | None = b"v"
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = START_MS


def idempotent_batch(
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    timestamps_ms: Iterable[int] | None = None,
    value: bytes = b"v",
    key: bytes | None = None,
    codec: Codec = Codec.NONE,
) -> bytes:
    """Return a batch as an idempotent producer sends it.

    If ``timestamps_ms`` is given, the batch has one record for each, whatever ``count`` is.
    """
    stamps = [START_MS] * count if timestamps_ms is None else list(timestamps_ms)
    return build_batch(
        [PlainRecord(value, key, timestamp_ms=stamp) for stamp in stamps],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        codec=codec,
    ).data


class VirtualCluster:
    """A `ClusterState`, made with ``options``, and a virtual clock, which only `run_until` moves.

    ``deliveries`` has all that was delivered to any client, in order.
    """

    __slots__ = ("_answers", "deliveries", "now", "state")

    def __init__(self, **options: Any) -> None:
        self.state = ClusterState(**options)
        self.now = 0.0
        self.deliveries: list[Delivery] = []
        self._answers: dict[tuple[int, int], Entity] = {}

    def __repr__(self) -> str:
        return f"<VirtualCluster now={self.now} deliveries={len(self.deliveries)}>"

    @property
    def wall_ms(self) -> int:
        """Return the present time of the wall clock, in ms since the epoch."""
        return START_MS + round(self.now * 1000)

    def client(self, broker_id: int = 0) -> VirtualClient:
        """Open a connection to a broker.

        Raises:
            ConnectionRefusedError: The broker is stopped.
        """
        return VirtualClient(self, broker_id)

    def run_until(self, now: float) -> list[Delivery]:
        """Advance the clock to ``now`` (seconds), and return what was delivered meanwhile."""
        self.now = max(self.now, now)
        delivered = self.state.advance(self.now, self.wall_ms)
        self.deliveries += delivered
        for delivery in delivered:
            if delivery.pending is not None and delivery.response is not None:
                key = delivery.connection.id, delivery.correlation_id
                self._answers[key] = _reread(delivery)
        return delivered

    def settle(self) -> list[Delivery]:
        """Carry out the events that are due now, without advancing the clock."""
        return self.run_until(self.now)

    def answer(self, connection_id: int, correlation_id: int) -> Entity | None:
        """Return a request's answer as a client decodes it; None: there is none yet."""
        return self._answers.get((connection_id, correlation_id))


class VirtualClient:
    """One connection, on which a test sends requests."""

    __slots__ = ("_cluster", "_last_id", "connection")

    def __init__(self, cluster: VirtualCluster, broker_id: int) -> None:
        self._cluster = cluster
        self._last_id = 0
        self.connection = cluster.state.connect(broker_id)

    def __repr__(self) -> str:
        return f"<VirtualClient {self.connection!r} sent={self._last_id}>"

    def send(self, api_key: int, version: int, values: Mapping[str, Any]) -> int:
        """Send a request with the fields ``values``, and return its correlation id."""
        schema = request_type(api_key, version)
        if schema is None:
            raise LookupError(f"no request of API {api_key} in version {version}")
        self._last_id += 1
        message: Entity = build(schema, values)
        frame = encode_request(message, correlation_id=self._last_id, client_id="virtual")
        header, request = read_request(frame[4:])
        self._cluster.state.submit(
            self.connection,
            request,
            api_key=header.api_key,
            api_version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            now=self._cluster.now,
            wall_ms=self._cluster.wall_ms,
            size=len(frame),
        )
        self._cluster.settle()
        return self._last_id

    def answer(self, correlation_id: int) -> Entity | None:
        """Return the answer to a request; None: there is none yet."""
        return self._cluster.answer(self.connection.id, correlation_id)

    def wait(self, correlation_id: int) -> Entity:
        """Advance the clock until a request is answered, and return the answer.

        Raises:
            KafkaTimeoutError: Nothing is scheduled any more, so there will be no answer.
        """
        while (found := self.answer(correlation_id)) is None:
            due = self._cluster.state.next_due()
            if due is None:
                raise KafkaTimeoutError(f"request {correlation_id} will never be answered")
            self._cluster.run_until(due)
        return found

    def ask(self, api_key: int, version: int, values: Mapping[str, Any]) -> Entity:
        """Send a request and wait for its answer."""
        return self.wait(self.send(api_key, version, values))

    def send_produce(
        self,
        records: bytes | None,
        *,
        topic: str = "t",
        partition: int = 0,
        version: int = 13,
        acks: int = -1,
        timeout_ms: int = 30_000,
        topic_id: UUID | None = None,
        transactional_id: str | None = None,
    ) -> int:
        """Send a Produce request for one partition; in v13 and up with the topic's id."""
        known = self._cluster.state.topics.get(topic)
        if topic_id is None and known is not None:
            topic_id = known.id
        values = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": from_ms(timeout_ms),
            "topic_data": [
                {
                    "name": topic,
                    "topic_id": topic_id,
                    "partition_data": [{"index": partition, "records": records}],
                }
            ],
        }
        return self.send(0, version, values)

    def produce(self, records: bytes | None, **options: Any) -> Entity:
        """Send a Produce request, wait, and return the partition's part of the answer."""
        return only_partition(self.wait(self.send_produce(records, **options)))

    def close(self) -> None:
        """Close the connection from the client's side."""
        self._cluster.state.disconnect(self.connection)


def only_partition(answer: Entity) -> Entity:
    """Return the part of a Produce answer that is about its one partition.

    Raises:
        ValueError: The answer is about no partition or several.
    """
    (topic,) = answer.responses
    (part,) = topic.partition_responses
    return part


def _reread(delivery: Delivery) -> Entity:
    answered: Entity = delivery.response
    frame = encode_response(answered, delivery.correlation_id)
    schema = response_type(answered.__api_key__, answered.__version__)
    if schema is None:
        raise LookupError(f"no schema for {type(answered).__name__}")
    return decode_response(schema, frame[4:])[1]
