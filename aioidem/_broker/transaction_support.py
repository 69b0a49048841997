"""The check of a transaction's first write in a partition or group (KIP-890).

If a producer has no open transaction in a partition (or group), the partition's leader (or the
group's coordinator) asks the transaction coordinator before it appends. Depending on the version of
the request, the coordinator then adds the partition to the transaction, or checks that the client
has added it. A client that is too old to know an error code is sent an older code instead.
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
        """Return how much of KIP-890 a client knows, by the version of its request.

        ``first_abortable`` is the version that brought TRANSACTION_ABORTABLE. For later versions
        the broker adds the partition or group to the transaction by itself.
        """
        if version > first_abortable:
            return cls.IMPLICIT
        return cls.ABORTABLE if version == first_abortable else cls.NONE


def admit(
    cluster: Cluster, name: str, identity: Identity, target: Target, support: Support
) -> None:
    """Add a target (a partition or group) to a transaction, or check that it takes part already.

    The target is added for a client with `Support.IMPLICIT`, and checked for any other client.

    Raises:
        RefusedError: With a code that the client knows.
    """
    try:
        _ask(cluster, name, identity, target, support)
    except RefusedError as refusal:
        raise RefusedError(_told(refusal.code, support), refusal.message) from None


def as_known_to(api_key: int, version: int, code: ErrorCode) -> ErrorCode:
    """Return ``code``; versions before KIP-588 get INVALID_PRODUCER_EPOCH for PRODUCER_FENCED."""
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
    # NOT_ENOUGH_REPLICAS replaces codes that old clients would not retry. Every client retries it,
    # without refreshing its metadata.
    busy = code is ErrorCode.concurrent_transactions and support is not Support.IMPLICIT
    return ErrorCode.not_enough_replicas if busy or code in _COORDINATOR_AWAY else code
