"""One member of a group, as its coordinator knows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from aioidem._broker.requests import Promised
from aioidem._broker.timer import Timer

__all__ = ["CLIENT_HOST", "Joining", "Member", "Protocols"]

CLIENT_HOST = "/127.0.0.1"
"""The host of every member in the answers to DescribeGroups."""

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""A member's protocols, preferred first: the name of each, and its metadata for the leader."""


@dataclass(frozen=True, slots=True)
class Joining:
    """The contents of a JoinGroup request; times are in seconds.

    ``needs_known_id`` says whether the first answer to a new member has only a member id, with
    which the member joins again (v4, KIP-394). ``may_skip`` says whether the answer to a leader can
    forbid it to compute the assignment again (v9, KIP-814).
    """

    member_id: str
    instance_id: str | None
    client_id: str
    protocol_type: str
    protocols: Protocols
    session: float
    rebalance: float
    needs_known_id: bool
    may_skip: bool

    @property
    def names(self) -> set[str]:
        """Return the names of the protocols."""
        return {name for name, _ in self.protocols}


class Member:
    """A member: the contents of its last JoinGroup, and which of its requests wait.

    ``is_new``: the member's first JoinGroup is not answered yet, so it cannot send heartbeats.
    """

    __slots__ = (
        "assignment",
        "client_id",
        "id",
        "instance_id",
        "is_new",
        "joining",
        "protocols",
        "rebalance",
        "session",
        "session_timer",
        "syncing",
    )

    def __init__(self, member_id: str, asked: Joining, session_timer: Timer) -> None:
        self.id = member_id
        self.instance_id = asked.instance_id
        self.client_id = asked.client_id
        self.assignment = b""
        self.is_new = False
        self.joining: Promised | None = None
        self.syncing: Promised | None = None
        self.session_timer = session_timer
        self.update(asked)

    def __repr__(self) -> str:
        waits = "join" if self.joining else "sync" if self.syncing else "nothing"
        return f"<Member {self.id!r} instance={self.instance_id!r} waits for {waits}>"

    def update(self, asked: Joining) -> None:
        """Record the member's next JoinGroup, which may name other protocols."""
        self.protocols, self.session, self.rebalance = (
            asked.protocols,
            asked.session,
            asked.rebalance,
        )

    @property
    def is_static(self) -> bool:
        """Return whether the member has an instance id (KIP-345)."""
        return self.instance_id is not None

    @property
    def waits(self) -> bool:
        """Return whether the member's JoinGroup or SyncGroup waits for its answer.

        While it waits, the member need not send heartbeats. The first JoinGroup of a new member
        does not count.
        """
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def names(self) -> set[str]:
        """Return the names of the member's protocols."""
        return {name for name, _ in self.protocols}

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol; empty if it does not speak the protocol."""
        return dict(self.protocols).get(protocol or "", b"")

    def vote(self, candidates: Collection[str]) -> str:
        """Return which of the protocols ``candidates`` the member prefers.

        All members, and so this one too, support every candidate.
        """
        return next(name for name, _ in self.protocols if name in candidates)

    def answer_join(self, values: Mapping[str, Any]) -> bool:
        """Answer the member's JoinGroup if one waits, and return whether one did."""
        promised, self.joining = self.joining, None
        if promised is not None:
            promised.keep(values)
        return promised is not None

    def answer_sync(self, values: Mapping[str, Any]) -> bool:
        """Answer the member's SyncGroup if one waits, and return whether one did."""
        promised, self.syncing = self.syncing, None
        if promised is not None:
            promised.keep(values)
        return promised is not None
