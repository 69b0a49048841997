"""Reads the frames between a producer and its brokers, and tells the judges what they contain.

`aioidem._testing.wire_frames` reads them, so the judges trust neither the client's encoder nor its
decoder. Which topic has which id, and which leader epoch is the newest, is taken from the Metadata
and Produce answers that the brokers sent, and not from the client's view of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from aioidem._testing.wire_frames import (
    METADATA,
    PRODUCE,
    FrameError,
    MetadataTold,
    ProduceTold,
    TopicTold,
    misstatements,
    read_header,
    read_metadata,
    read_produce,
    read_produced,
)
from aioidem.testing import Anomaly, Violation, WireAnswer, WireBatch, WireMonitor

__all__ = ["FrameWatch", "Listener"]


class Listener(Protocol):
    """A judge that is told about Produce requests and answers."""

    def wrote(self, connection: object, request: object, batches: Sequence[WireBatch]) -> None:
        """Note that a request was given to the socket."""

    def answered(self, connection: object, request: object, answers: Sequence[WireAnswer]) -> None:
        """Note that an answer reached the producer."""

    def lost(self, connection: object, unwritten: Collection[object] = ()) -> None:
        """Note that a connection has ended."""


class FrameWatch:
    """Tells judges what the frames of one producer contain.

    Args:
        monitor: The wire monitor, which is also told of new leaders and recreated topics.
        listeners: Other judges.
        recreated: Is told the name of a topic that an answer has shown to be recreated.
        heard: Is told connection, request and contents of each answer to Produce.
        described: Is told connection and request when metadata of the producer's own cluster has
            reached it.
    """

    def __init__(
        self,
        monitor: WireMonitor,
        listeners: Sequence[Listener],
        recreated: Callable[[str], None] = lambda _topic: None,
        heard: Callable[[object, object, list[WireAnswer]], None] = lambda *_answer: None,
        described: Callable[[object, object], None] = lambda *_answer: None,
    ) -> None:
        self._monitor = monitor
        self._judges: list[Listener] = [monitor, *listeners]
        self._recreated = recreated
        self._heard = heard
        self._described = described
        self._names: dict[bytes, str] = {}
        self._ids: dict[str, bytes] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        # By connection: the requests that wait for an answer, by correlation id.
        self._asked: dict[object, dict[int, tuple[int, int, object]]] = {}
        # `_home`: the cluster that the producer writes to; None until an answer names it.
        # `_elsewhere`: what each other cluster has said last, for the case that the producer moves.
        self._home: str | None = None
        self._elsewhere: dict[str | None, MetadataTold] = {}

    def sent(self, connection: object, request: object, frame: bytes) -> None:
        """Note that a request was given to the socket.

        Args:
            connection: Identifies the connection.
            request: Identifies the request on its connection.
            frame: The request, without the four bytes of its length.
        """
        (key, version, correlation_id), _ = read_header(frame)
        if key == PRODUCE:
            written = read_produce(frame)
            batches = [
                WireBatch(self._name(topic), index, data) for topic, index, data in written.batches
            ]
            for batch in batches:
                self._check_form(batch)
            if written.acks == 0:
                return
            for judge in self._judges:
                judge.wrote(connection, request, batches)
        self._asked.setdefault(connection, {})[correlation_id] = key, version, request

    def _check_form(self, batch: WireBatch) -> None:
        """Report a batch whose header a broker should not believe; it is compared with its records.

        The embedded broker believes what Kafka computes again: it would not notice.
        """
        try:
            wrong = misstatements(batch.data)
        except (FrameError, ValueError, RuntimeError) as error:
            wrong = [repr(error)]
        if wrong:
            where = f"{batch.topic}-{batch.partition}"
            detail = f"{where}: {'; '.join(wrong)}"
            self._monitor.violations.append(Violation(Anomaly.MISSTATED, detail))

    def received(self, connection: object, payload: bytes) -> None:
        """Note that an answer has reached the producer; `payload` begins with its correlation id.

        An answer that cannot be read says nothing, nor does one that names a partition twice: the
        producer has to give the connection up.
        """
        asked = self._asked.get(connection, {})
        key, version, request = asked.pop(int.from_bytes(payload[:4], "big"), (-1, -1, None))
        try:
            if key == PRODUCE:
                self._on_produced(connection, request, read_produced(payload, version))
            elif key == METADATA and self._on_metadata(read_metadata(payload, version)):
                self._described(connection, request)
        except (FrameError, UnicodeDecodeError):
            return

    def merging(self, connection: object, payload: bytes, names: Collection[str]) -> None:
        """Note that the producer knows the leaders of these topics from an answer.

        It puts a long Metadata answer into its view piece by piece, and takes it for received after
        that, if its connection still exists. Until then a topic that was recreated is the old one.

        Args:
            connection: Identifies the connection.
            payload: The answer, which begins with its correlation id.
            names: The topics that are in the view already.
        """
        asked = self._asked.get(connection, {})
        _, version, _ = asked.get(int.from_bytes(payload[:4], "big"), (-1, -1, None))
        try:
            told = read_metadata(payload, version)
        except (FrameError, UnicodeDecodeError):
            return
        for topic in told.topics:
            name = topic.name
            if name is None or name not in names or topic.code:
                continue
            if topic.topic_id == self._ids.get(name):
                for partition in topic.partitions:
                    if (name, partition.partition) in self._epochs:
                        self._lead(name, partition.partition, partition.leader_epoch)

    def lost(self, connection: object, unwritten: Collection[object] = ()) -> None:
        """Note that a connection has ended; of the requests `unwritten` no byte was written."""
        self._asked.pop(connection, None)
        for judge in self._judges:
            judge.lost(connection, unwritten)

    def cluster_changed(self, cluster_id: str) -> None:
        """Note that the producer has moved to another cluster."""
        self._monitor.cluster_changed()
        self._ids.clear()
        self._epochs.clear()
        self._home, told = cluster_id, self._elsewhere.get(cluster_id)
        self._elsewhere.clear()
        if told is not None:
            self._on_metadata(told)

    def _name(self, topic: str | bytes) -> str:
        return topic if isinstance(topic, str) else self._names.get(topic, "")

    def _on_produced(self, connection: object, request: object, told: list[ProduceTold]) -> None:
        if len({each[:2] for each in told}) < len(told):
            return
        answers = [WireAnswer(self._name(each.topic), *each[1:4], each.retained) for each in told]
        self._heard(connection, request, answers)
        for judge in self._judges:
            judge.answered(connection, request, answers)
        for each in told:
            if each.leader_epoch is not None and each.code:
                self._lead(self._name(each.topic), each.partition, each.leader_epoch)

    def _on_metadata(self, told: MetadataTold) -> bool:
        """Note metadata; return whether it is of the producer's own cluster."""
        for topic in told.topics:
            if topic.topic_id is not None and topic.name is not None:
                self._names[topic.topic_id] = topic.name
        if self._home is None:
            self._home = told.cluster_id
        if told.cluster_id != self._home:
            self._elsewhere[told.cluster_id] = told
            return False
        for topic in told.topics:
            if not topic.code and topic.name is not None:
                self._describe(topic.name, topic)
        return True

    def _describe(self, name: str, topic: TopicTold) -> None:
        known, told = self._ids.get(name), topic.topic_id
        if told is not None and any(told):
            self._ids[name] = told
            if known is not None and known != told:
                for place in [place for place in self._epochs if place[0] == name]:
                    del self._epochs[place]
                self._monitor.topic_recreated(name)
                self._recreated(name)
        for partition in topic.partitions:
            self._lead(name, partition.partition, partition.leader_epoch)

    def _lead(self, topic: str, partition: int, epoch: int) -> None:
        known = self._epochs.get((topic, partition))
        if known is None or epoch > known:
            self._epochs[topic, partition] = epoch
            if known is not None:
                self._monitor.leader_changed(topic, partition)
