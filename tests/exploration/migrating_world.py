"""MigratingWorld: a world whose addresses may lead to another cluster.

Clusters do not know of each other: node ids, topics and leader epochs are alike in both.
The faults:

- *migrate*: all connections break, and from now on every address leads to a new cluster, which has
  the topic too. The old cluster still serves the requests that had been sent to it.
- *stray*: the next connection to broker 2 leads to a stranger's cluster; the one after it does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aioidem._engine import steps
from aioidem._protocol.metadata import MetadataUpdate

from .space import Space
from .world import PRODUCER_ID, Pipe, Request, World

__all__ = ["MigratingWorld"]

_STRANGER = 0
_FIRST = 1
_MISLED = 2
"""The broker whose address may lead to a stranger."""


class MigratingWorld(World):
    """The joint state of engine, network and the brokers of two clusters.

    Args:
        space: what there is in this world, and what may go wrong.
        faults: how many faults may happen.
    """

    def __init__(self, space: Space, faults: int) -> None:
        # The number of the cluster to which the addresses lead.
        self.cluster = _FIRST
        # Whether the next connection to broker 2 leads to a stranger.
        self.stray = False
        # The first producer id that the present cluster has granted.
        self.first_id = PRODUCER_ID
        super().__init__(space, faults)

    def _find_faults(self, found: list[str], kinds: frozenset[str]) -> None:
        super()._find_faults(found, kinds)
        if "migrate" in kinds and self.cluster == _FIRST:
            found.append("migrate")
        if "stray" in kinds and not self.stray:
            found.append("stray")

    def do(self, action: str) -> None:
        """Let an action happen, and the engine react to it."""
        match action:
            case "migrate":
                self._migrate()
            case "stray":
                self.stray = True
            case _:
                super().do(action)
                return
        self._after(fault=True, idle=action == "stray")

    def _migrate(self) -> None:
        for pipe in [each for each in self.pipes if each.open]:
            self._cut(pipe, unwritten=False)
        self.cluster += 1
        self.deleted, self.logs = self.logs, [self._log() for _ in self.logs]
        self.topic += 1
        self.first_id = PRODUCER_ID + self.ids_granted

    @contextmanager
    def _cluster_of(self, pipe: Pipe) -> Iterator[None]:
        """Let the logs be those of the cluster that a connection leads to while the block runs."""
        if pipe.cluster == self.cluster:
            yield
            return
        self.logs, self.deleted = self.deleted, self.logs
        self.topic -= 1
        yield
        self.topic += 1
        self.logs, self.deleted = self.deleted, self.logs

    def _serves(self, pipe: Pipe) -> bool:
        with self._cluster_of(pipe):
            return super()._serves(pipe)

    def _takes(self, pipe: Pipe, fault: str) -> bool:
        with self._cluster_of(pipe):
            return super()._takes(pipe, fault)

    def _serve(self, pipe: Pipe, fault: str = "") -> None:
        with self._cluster_of(pipe):
            super()._serve(pipe, fault)

    # -- the engine --------------------------------------------------------------------------------

    def _perform(self, step: steps.Step) -> None:
        match step:
            case steps.OpenLink(_, host, _) if self.stray and host == f"b{_MISLED}":
                self.stray = False
                super()._perform(step)
                self.pipes[-1].cluster = _STRANGER
            case steps.OpenLink():
                super()._perform(step)
                self.pipes[-1].cluster = self.cluster
            case steps.AskCluster(link_id, _):
                name = _name(self._pipe(link_id).cluster)
                self.core.on_answer(step, name, self.now)
            case steps.FetchMetadata(link_id) if self._pipe(link_id).cluster == _STRANGER:
                self.core.on_answer(step, MetadataUpdate(_name(_STRANGER), (), ()), self.now)
            case steps.SendProduce(link_id) | steps.InitProducerId(link_id) if (
                self._pipe(link_id).cluster == _STRANGER
            ):
                self.complaints.append("a stranger's broker is written to, or asked for an id")
            case _:
                super()._perform(step)

    def _metadata(self) -> MetadataUpdate:
        return super()._metadata()._replace(cluster_id=_name(self.cluster))

    def _write(self, step: steps.SendProduce) -> None:
        super()._write(step)
        request = self._pipe(step.link_id).requests[-1]
        assert isinstance(request, Request)
        if any(batch.producer_id < self.first_id for _, batch in request.batches):
            self.complaints.append("a producer id is used in another cluster than its own")


def _name(cluster: int) -> str:
    return f"cluster {cluster}"
