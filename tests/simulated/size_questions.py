"""The judge of sizes: batches keep to the limits that are known, which are asked for if needed.

A batch of several records is, when it is first sent, no larger than `batch_size`, than
`max_request_size` and than the topic's limit. With `late_sealing` or a codec it may exceed
`batch_size`, and then be as large as the topic's limit, if the connection has told it, or as the
largest batch that was accepted on the connection. The batches of a request are together no larger
than `max_request_size`, unless it has only one.

A limit is needed if batches may grow beyond `batch_size`, or one was refused for its size and no
known limit explains that. It is asked for once, and again after `metadata_max_age`, or at once if a
batch within the limit is refused; but not on the connection after one that ended upon that
question, because the broker may have closed it for that reason. A producer that asks more often
delivers each record all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aioidem._config import ProducerConfig
from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.links import Link, Node
from aioidem.testing import ValueId

from .decoding import records_in

__all__ = ["SizeQuestions"]

_TICK = 1e-9


class _Asked:
    """What is known of one topic's limit on one connection."""

    def __init__(self) -> None:
        self.open = False  # whether a question waits for its answer
        # The largest batch that was accepted, in bytes.
        self.accepted = 0
        self.answered_at: float | None = None
        self.told: int | None = None
        # Whether a batch was refused since that the limit allows.
        self.unexplained = False


class SizeQuestions:
    """Judges the questions about topics' size limits.

    Args:
        config: The producer's options.
        complain: Is told what is wrong.
    """

    def __init__(self, config: ProducerConfig, complain: Callable[[str], None]) -> None:
        self._config = config
        self._complain = complain
        self._asked: dict[BatchLimit, _Asked] = {}
        # By broker: the connections that were up, in their order; and the open questions of each.
        # A topic that was recreated has another limit than the one that was asked for.
        self._up: dict[Node | None, list[Link]] = {}
        self._open: dict[Link, dict[int, _Asked]] = {}
        self._sent: set[ValueId] = set()

    def opened(self, link: Link, node: Node | None) -> None:
        """Note that a connection is up."""
        self._up.setdefault(node, []).append(link)

    def asks(self, link: Link, node: Node | None, topic: str, token: int, now: float) -> None:
        """Note that the limit of a topic is asked for on a connection."""
        asked = self._of(link, topic)
        wrong = self._needless(asked, now) or self._unwise(link, node)
        if wrong is not None:
            self._complain(f"broker {link.node_id} is asked for the limit of {topic}, {wrong}")
        asked.open = True
        self._open.setdefault(link, {})[token] = asked

    def _needless(self, asked: _Asked, now: float) -> str | None:
        if asked.open:
            return "which it was asked for already"
        if not asked.unexplained and not self._config.late_sealing:
            return "which nothing depends on"
        if asked.answered_at is None or (asked.unexplained and asked.told is not None):
            return None
        age = now - asked.answered_at
        return (
            f"{age:.3f} s after its answer" if age < self._config.metadata_max_age - _TICK else None
        )

    def _unwise(self, link: Link, node: Node | None) -> str | None:
        up = self._up.get(node, [])
        before = up[up.index(link) - 1] if link in up[1:] else None
        if before is not None and self._open.get(before):
            return "upon which it may have closed the connection before"
        return None

    def sends(self, link: Link, node: Node | None, topic: str, batches: Iterable[bytes]) -> None:
        """Note that batches of a topic are sent on a connection."""
        asked = self._of(link, topic)
        due = asked.answered_at is None or asked.told is not None
        if asked.unexplained and due and not asked.open and self._unwise(link, node) is None:
            self._complain(
                f"broker {link.node_id} has refused a batch of {topic} for its size, and gets "
                "another one before it is asked for the limit"
            )
        for data in batches:
            values = [value for value, _ in records_in(data)]
            if len(values) > 1 and self._sent.isdisjoint(values):
                self._judge_size(asked, len(data), f"{len(values)} records from {values[0]} on")
            self._sent.update(values)

    def request(self, sizes: Sequence[int]) -> None:
        """Note a Produce request, and how many bytes each of its batches has."""
        most = self._config.max_request_size
        if len(sizes) > 1 and sum(sizes) > most:
            self._complain(f"a request has {len(sizes)} batches of {sum(sizes)} bytes; {most} fit")

    def _judge_size(self, asked: _Asked, nbytes: int, what: str) -> None:
        config = self._config
        # How much a codec saves is a guess: a batch that is larger than expected is sent as it is.
        grows = config.late_sealing or config.compression_type != "none"
        most = config.batch_size
        if grows:
            most = max(most, asked.accepted)
        if asked.told is not None:
            most = asked.told if grows else min(most, asked.told)
        most = min(most, config.max_request_size)
        if nbytes > most:
            self._complain(f"a batch of {nbytes} bytes has {what}; at most {most} bytes may")

    def accepted(self, link: Link, topic: str, nbytes: int) -> None:
        """Note that a batch was accepted."""
        asked = self._of(link, topic)
        asked.accepted = max(asked.accepted, nbytes)

    def answered(self, link: Link, token: int, told: int | None, now: float) -> None:
        """Note an answer; `told` is None if the broker names no limit, or cannot be asked."""
        asked = self._open.get(link, {}).pop(token)
        asked.open, asked.unexplained = False, False
        asked.answered_at, asked.told = now, told

    def refused(self, link: Link, topic: str, nbytes: int) -> None:
        """Note that a batch was refused for its size."""
        asked = self._of(link, topic)
        if asked.told is None or nbytes <= asked.told:
            asked.unexplained = True
        if nbytes <= asked.accepted:
            asked.accepted = 0

    def _of(self, link: Link, topic: str) -> _Asked:
        return self._asked.setdefault(link.limits.of(topic), _Asked())
