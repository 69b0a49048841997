"""Rows of what happened in one transaction, and what they show.

A row is kept for each call that was sent, accepted or lost, and for each batch that was answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._engine.coordinator import CallKind
from aioidem._engine.transactions import OffsetCommit
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset

from .coordinated_codes import Who, may_be_done

__all__ = ["Due", "Offsets", "Rows", "Which"]

_CURRENT: Final = (ErrorCode.none, ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)
"""Codes of a batch that show that the transaction before is completed (v2)."""

Which = tuple[str, int]
"""A topic, and one of its partitions."""


@dataclass(eq=False)
class Offsets:
    """The offsets that a group's member wants to commit, and those that are not accepted yet."""

    member: GroupMember
    values: dict[Which, TxnOffset]
    given: OffsetCommit
    left: dict[Which, TxnOffset] = field(default_factory=dict)

    def same(self, other: Offsets) -> bool:
        """Return whether both commit the same for the same member."""
        return (self.member, self.values) == (other.member, other.values)


class Due(NamedTuple):
    """A call that is due, and whose coordinator gets it, or is to be found."""

    kind: CallKind
    whom: Who
    partitions: tuple[Which, ...] = ()
    offsets: Offsets | None = None
    commit: bool = False


@dataclass
class Rows:
    """What happened in one transaction."""

    version: int = 0
    """The level of `transaction.version`."""
    committed: bool | None = None
    """Whether it was committed; None before it ended."""
    outcome_told: bool = False
    """Whether a caller has heard that."""
    sent: list[Due] = field(default_factory=list)
    lost: list[Due] = field(default_factory=list)
    """The calls that were written, and whose answers were lost."""
    accepted: list[Due] = field(default_factory=list)
    """The calls that added something."""
    writes: list[int | None] = field(default_factory=list)
    """The codes of batches and of committed offsets; None for one without an answer."""
    commits: list[int] = field(default_factory=list)
    """The error codes with which EndTxn(commit) was answered."""
    added: set[Which] = field(default_factory=set)
    """The partitions that are in the transaction."""
    wanted: list[Which] = field(default_factory=list)
    """The partitions that are to be added to it."""
    groups: list[str] = field(default_factory=list)
    """The consumer groups that are in the transaction."""
    queue: list[Offsets] = field(default_factory=list)
    """The offsets that are to be committed, oldest first."""

    @property
    def v2(self) -> bool:
        """Whether the first write to a partition adds it (KIP-890)."""
        return self.version == 2

    @property
    def begun(self) -> bool:
        """Whether the transaction may be open at the coordinator."""
        asked = not self.v2 and any(
            each.kind not in (CallKind.FIND, CallKind.INIT, CallKind.END) for each in self.sent
        )
        return asked or any(code != ErrorCode.concurrent_transactions for code in self.writes)

    @property
    def known(self) -> bool:
        """Whether the coordinator has this transaction, or is done with the one before."""
        return bool(self.accepted) or (self.v2 and any(code in _CURRENT for code in self.writes))

    @property
    def in_doubt(self) -> bool:
        """Whether the coordinator may have committed it."""
        return any(each.commit for each in self.lost) or any(map(may_be_done, self.commits))

    def could_be_overwritten(self, new: Offsets) -> bool:
        """Return whether a lost commit of other offsets may be carried out after new ones."""
        commits = [each for each in self.lost if each.kind is CallKind.COMMIT_OFFSETS]
        stray = [each.offsets for each in commits if each.offsets is not None]
        of_group = [each for each in stray if each.member.group_id == new.member.group_id]
        return not all(each.same(new) for each in of_group)
