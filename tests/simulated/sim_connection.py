"""The client's end of a connection, and the network behind it: what delays, blocks and is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioidem import errors
from aioidem._broker.requests import Connection as BrokerConnection
from aioidem._broker.state import ClusterState
from aioidem._protocol.frames import FrameLimit
from aioidem._protocol.versions import ApiVersionTable

if TYPE_CHECKING:
    from .world import World

__all__ = ["SimConnection"]


class SimConnection:
    """The client's end of a connection, with the network behind it."""

    def __init__(
        self,
        world: World,
        link_id: int,
        cluster: ClusterState,
        peer: BrokerConnection,
        rtt: float,
    ) -> None:
        self._world = world
        self.link_id = link_id
        self.cluster = cluster
        self.peer = peer
        self.broker = peer.broker_id
        self.incarnation = world.incarnations[peer.broker_id]
        self.delay = rtt / 2
        self.versions = ApiVersionTable(
            {
                key: (low, high)
                for key, low, high in cluster.announced(cluster.brokers[peer.broker_id])
                if (peer.broker_id, key) not in world.schedule.odd.lacks
            }
        )
        self.open = True
        # `mute`: requests do not arrive. `deaf`: answers are not received.
        self.mute = self.deaf = False
        # `blocked`: the client's socket takes no bytes.
        self.blocked = False
        self._last_id = 0
        self._started = 0
        self._backlog: list[tuple[int, bytes]] = []
        self.under_way: list[list[Any]] = []
        # How many bytes still pass before the connection is reset, "up" and "down".
        self.reset_after: dict[str, int] = {}
        self.sends_oldest = False
        """As in `network.Connection`."""
        self.answered = 0
        """The correlation id of the last request that was answered."""
        # How many bytes the socket still takes before it blocks, and the frame that it has taken
        # in part, which leaves when it takes bytes again.
        self._accepts: int | None = None
        self._torn: bytes | None = None
        self._last_due = 0.0
        self.held_until = 0.0
        """Until when answers are under way that the network holds up, in seconds."""
        # Until when the link sends earlier frames, if the bandwidth is limited.
        self._busy_until = 0.0

    def next_correlation_id(self) -> int:
        """Return the next correlation id, as `network.Connection` does."""
        self._last_id += 1
        return self._last_id

    def write(
        self,
        frame: bytes,
        *,
        correlation_id: int,
        expects_response: bool = True,
        limit: FrameLimit | None = None,
    ) -> None:
        """Queue the frame, and send it if the socket takes it, as `network.Connection` does."""
        del expects_response, limit
        if not self.open:
            raise errors.KafkaConnectionError("closed")
        self._backlog.append((correlation_id, frame))
        self.flush()

    def started(self, correlation_id: int) -> bool:
        """Return whether a byte of the request may have left, as `network.Connection` does."""
        return correlation_id <= self._started

    def close_soon(self, reason: str) -> None:
        """Close the connection: frames that left may still arrive, queued frames never leave."""
        self._world.client_closes(self, reason)

    def flush(self) -> None:
        """Hand the queued frames to the socket while it takes them."""
        if self._torn is not None and not self.blocked and self.open:
            frame, self._torn = self._torn, None
            self._world.progressed(self, oldest=True)
            if not self.mute:
                self._travel(frame)
        while self._backlog and not self.blocked and self.open:
            oldest = self._started == self.answered
            self._started, frame = self._backlog.pop(0)
            self._world.progressed(self, oldest=oldest)
            if self._accepts is not None:
                self._accepts -= len(frame)
                if self._accepts < 0:
                    self._torn, self.blocked = frame, True
                    return
            if self.cut_short("up", len(frame)):
                return
            if not self.mute:
                self._travel(frame)

    def take_only(self, nbytes: int) -> None:
        """Let the socket take so many bytes, which may end within a frame, and then none."""
        self._accepts = nbytes

    def take_all(self) -> None:
        """Let the socket take bytes again, first the rest of the frame that it took in part."""
        self._accepts = None
        self.blocked = False
        self.flush()

    def cut_short(self, way: str, nbytes: int) -> bool:
        """Count bytes towards `reset_after`, and return whether they reset the connection."""
        left = self.reset_after.get(way)
        if left is None or self.mute:
            return False
        self.reset_after[way] = left - nbytes
        if left >= nbytes:
            return False
        reset = errors.KafkaConnectionError(f"reset after {left} bytes")
        self.mute = self.deaf = True
        self._world.at(self._world.now, lambda: self._world.lose(self, reset))
        return True

    def _travel(self, frame: bytes) -> None:
        world = self._world
        leaves = world.now
        if world.bandwidth is not None:
            leaves = self._busy_until = max(leaves, self._busy_until) + len(frame) / world.bandwidth
            world.at(leaves, lambda: world.progressed(self, oldest=True))
        due = self._last_due = max(self._last_due, leaves + self.delay)
        item: list[Any] = [frame]
        self.under_way.append(item)
        self._world.at(due, lambda: self._arrive(item))

    def _arrive(self, item: list[Any]) -> None:
        if item in self.under_way:
            self.under_way.remove(item)
            self._world.arrived(self, item[0])

    def lose_on_the_way(self, arriving: float) -> None:
        """Lose the last requests under way, so that only the share `arriving` of them arrives."""
        keep = round(arriving * len(self.under_way))
        del self.under_way[keep:]
