"""The judge of windows in words: `statistics()` gives a partition's window the reason it has.

An operator who sees a window of 5 changes what the reason names. So a reason that names another
broker or another number than the answers did sends him to the wrong place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from aioidem._engine import ProducerCore, steps
from aioidem._engine.discovery import DiscoveryState
from aioidem._engine.links import Link
from aioidem._engine.partition import PartitionState
from aioidem._engine.window_reason import window_reason
from aioidem._engine.windows import DEFAULT_BATCHES_RETAINED, MAX_BATCHES_RETAINED
from aioidem._protocol.produce import ProduceAnswer

from .decoding import answered_batches

__all__ = ["WindowWords"]

_Place = tuple[str, int]


class WindowWords:
    """Judges the reasons that an engine gives for its windows.

    Args:
        core: The engine.
        complain: Is told what is wrong.
    """

    def __init__(self, core: ProducerCore, complain: Callable[[str], None]) -> None:
        self._core = core
        self._complain = complain
        # By partition: the connection of the last success, and how many batches it has named, or
        # fewer if the broker was not believed then.
        self._told: dict[_Place, tuple[int, int]] = {}
        # By request and partition: the leader epoch under which a batch was sent.
        self._epochs: dict[tuple[int, _Place], int | None] = {}
        # Partitions whose last success came after a newer leader epoch was known, which need not
        # count.
        self._passed: set[_Place] = set()

    def sent(self, step: steps.SendProduce) -> None:
        """Note a request that the engine gives to the Sender."""
        for topic in step.topics:
            for index, _ in topic.partitions:
                place = topic.name, index
                self._epochs[step.token, place] = self._epoch(place)

    def _epoch(self, place: _Place) -> int | None:
        view = self._core.cluster.leader_of(*place)
        return None if view is None else view.leader_epoch

    def acknowledged(self, step: steps.SendProduce, answer: ProduceAnswer) -> None:
        """Note how many batches a leader retains, by its answer to a request."""
        link = self._core.connections.links.get(step.link_id)
        believed = None if link is None else link.memory.limit
        for place, _, part in answered_batches(step, answer):
            if not part.error_code:
                self._passed.discard(place)
                if self._epochs.get((step.token, place)) != self._epoch(place):
                    self._passed.add(place)
                said = DEFAULT_BATCHES_RETAINED if part.retained is None else part.retained
                said = min(said, believed or said, MAX_BATCHES_RETAINED)
                self._told[place] = step.link_id, max(1, said)

    def look(self) -> None:
        """Judge the reason of each partition."""
        partitions: Any = self._core.partitions
        for place, state in partitions.items():
            link = self._core.link_of(state)
            said = window_reason(state, link, self._core.config)
            for wrong in self._wrong(said, place, state, link):
                window = state.window.limit
                self._complain(f"{place[0]}-{place[1]} has a window of {window}: {said} ({wrong})")

    def _wrong(
        self, said: str, place: _Place, state: PartitionState, link: Link | None
    ) -> Iterator[str]:
        config, window = self._core.config, state.window.limit
        without = (not config.enable_idempotence, config.broker_dedup == "range")
        if any(without) or link is None:
            name = next((n for n, off in zip(_WITHOUT, without, strict=True) if off), _UNCONNECTED)
            if name not in said:
                yield f"expected: {name}"
            return
        fewer = config.max_in_flight_requests_per_connection
        if said.startswith(f"limited by max_in_flight_requests_per_connection ({fewer}); ") != (
            fewer < window
        ):
            yield f"{fewer} requests may be in flight"
        heard = link.discovery.state is DiscoveryState.HEARD and state.window.heard
        retained = f"broker {link.node_id} retains {window} batches" in said
        disbelieved = "was seen to refuse a retry within that number" in said
        if (retained or disbelieved) != heard:
            yield "known from an answer" if heard else "no answer has said so"
        believed = link.memory.limit
        if disbelieved != (heard and believed is not None and window >= believed):
            yield f"believed: {believed}"
        # A number counts until the next success, even if the broker refuses v14 in between.
        counts = heard or window != DEFAULT_BATCHES_RETAINED
        if counts and place not in self._passed:
            answered_on, told = self._told.get(place, (None, DEFAULT_BATCHES_RETAINED))
            if (answered_on, told) != (link.link_id, window):
                yield f"{told} by the last answer, on connection {answered_on}"
        if link.discovery.state is DiscoveryState.HEARD and not heard:
            unknown = f"broker {link.node_id} has not acknowledged a batch of this partition yet"
            if not said.endswith(unknown):
                yield f"expected: {unknown}"


_WITHOUT = ("enable_idempotence is off", "broker_dedup is 'range'")
_UNCONNECTED = "the partition's leader is not connected"
