"""One member of a group, as its coordinator knows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from aioidem._broker.requests import Promised
from aioidem._broker.timer import Timer

__all__ = ["CLIENT_HOST", "Joining", "Member", "Protocols"]

CLIENT_HOST = "/127.0.0.1"
"""Where every client of an embedded cluster is."""

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""What a member can do, what it likes most first: names, and what it says to the leader in each."""


@dataclass(frozen=True, slots=True)
class Joining:
    """What a JoinGroup says. Times: seconds.

    ``needs_known_id``: a new member is only given an id and has to ask again (v4, KIP-394).
    ``may_skip``: a leader can be told to assign nothing (v9, KIP-814).
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
        """Of its protocols."""
        return {name for name, _ in self.protocols}


class Member:
    """What it asked for, and which of its requests wait.

    ``is_new``: it has not had its first answer, so it cannot send heartbeats.
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
        """It joins again, perhaps with other protocols."""
        self.protocols, self.session, self.rebalance = (
            asked.protocols,
            asked.session,
            asked.rebalance,
        )

    @property
    def is_static(self) -> bool:
        """Whether it has an instance id (KIP-345)."""
        return self.instance_id is not None

    @property
    def waits(self) -> bool:
        """Whether one of its requests is parked: then it is alive without heartbeats."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def names(self) -> set[str]:
        """Of its protocols."""
        return {name for name, _ in self.protocols}

    def metadata(self, protocol: str | None) -> bytes:
        """What it says to the leader in that protocol; empty for one that it does not speak."""
        return dict(self.protocols).get(protocol or "", b"")

    def vote(self, candidates: Collection[str]) -> str:
        """Which of those protocols, all of which it speaks, it likes most."""
        return next(name for name, _ in self.protocols if name in candidates)

    def answer_join(self, values: Mapping[str, Any]) -> bool:
        """Answer its JoinGroup, if one waits."""
        promised, self.joining = self.joining, None
        if promised is not None:
            promised.keep(values)
        return promised is not None

    def answer_sync(self, values: Mapping[str, Any]) -> bool:
        """Answer its SyncGroup, if one waits."""
        promised, self.syncing = self.syncing, None
        if promised is not None:
            promised.keep(values)
        return promised is not None
