"""The check of a transaction's first write in a partition or group (KIP-890).

If a producer has no open transaction in a partition (or group), the partition's leader (or the
group's coordinator) asks the transaction coordinator before it appends. Depending on the version of
the request, the partition is added to the transaction, or the client must have added it before. A
client that is too old to know an error code is sent another one.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.cluster import Cluster
from aioidem._broker.transaction import Identity, Target

__all__ = ["Support", "admit", "as_known_to"]

_FIRST_WITH_FENCED: Final = {22: 4, 24: 2, 25: 2, 26: 2}
_COORDINATOR_AWAY: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


class Support(Enum):
    """How much of KIP-890 a client knows: nothing, TRANSACTION_ABORTABLE, or everything."""

    NONE = 0
    ABORTABLE = 1
    IMPLICIT = 2

    @classmethod
    def of(cls, version: int, first_abortable: int) -> Support:
        """Return the support of a client by the version of its request.

        From the version after ``first_abortable`` on the broker adds the target by itself.
        """
        if version > first_abortable:
            return cls.IMPLICIT
        return cls.ABORTABLE if version == first_abortable else cls.NONE


def admit(
    cluster: Cluster, name: str, identity: Identity, target: Target, support: Support
) -> None:
    """Add a target to a transaction, or check that it takes part, as `Support` requires.

    Raises:
        RefusedError: With a code that the client knows.
    """
    try:
        _ask(cluster, name, identity, target, support)
    except RefusedError as refusal:
        raise RefusedError(_told(refusal.code, support), refusal.message) from None


def as_known_to(api_key: int, version: int, code: ErrorCode) -> ErrorCode:
    """Return PRODUCER_FENCED as INVALID_PRODUCER_EPOCH for clients before KIP-588."""
    if code is ErrorCode.producer_fenced and version < _FIRST_WITH_FENCED[api_key]:
        return ErrorCode.invalid_producer_epoch
    return code


def _ask(cluster: Cluster, name: str, identity: Identity, target: Target, support: Support) -> None:
    fault = cluster.coordinator_faults.get(name)
    if fault is not None:
        raise RefusedError(fault, f"the coordinator of {name!r}")
    if support is Support.IMPLICIT:
        cluster.transactions.add(name, identity, {target}, implicit=True)
    else:
        cluster.transactions.verify(name, identity, target)


def _told(code: ErrorCode, support: Support) -> ErrorCode:
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and support is Support.NONE:
        return ErrorCode.invalid_txn_state
    # Clients retry NOT_ENOUGH_REPLICAS without refreshing their metadata. Old clients would not
    # retry the codes that it stands for.
    busy = code is ErrorCode.concurrent_transactions and support is not Support.IMPLICIT
    return ErrorCode.not_enough_replicas if busy or code in _COORDINATOR_AWAY else code
