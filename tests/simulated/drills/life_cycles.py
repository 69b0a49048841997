"""The drill of life cycles: the tables of the engine's states, told again by event.

A table of the engine has the state that follows by state and event. Here each event has the states
in which it can come, and the one that follows. A table must have a row for each of these pairs, and
no other: an event without a row raises, as a defect.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from random import Random
from typing import Any, Final, TypeAlias

from aioidem._engine.batch import (
    BATCH_TRANSITIONS,
    PERSISTENCE_TRANSITIONS,
    BatchEvent,
    BatchState,
    Evidence,
    Persistence,
)
from aioidem._engine.discovery import DISCOVERY_TRANSITIONS, DiscoveryEvent, DiscoveryState
from aioidem._engine.idempotence import IDENTITY_TRANSITIONS, IdentityEvent, IdentityState
from aioidem._engine.incidents import INCIDENT_TRANSITIONS, IncidentEvent, IncidentState
from aioidem._engine.links import LINK_TRANSITIONS, LinkEvent, LinkState
from aioidem._engine.recovery import RECOVERY_TRANSITIONS, RecoveryEvent, Rung
from aioidem._engine.transactions import TRANSACTION_TRANSITIONS, TransactionEvent, TransactionState

__all__ = ["drill_life_cycles"]

_Rules: TypeAlias = "Mapping[enum.Enum, tuple[Collection[enum.Enum], enum.Enum | None]]"
"""By event: the states in which it can come, and the one that follows; None if they stay."""

# A batch that has no outcome yet: it waits in the producer, or is in flight.
_B, _BE = BatchState, BatchEvent
_HERE: Final = (_B.SEALED, _B.WAITING)
_UNFINISHED: Final = (*_HERE, _B.IN_FLIGHT)
_BATCH: _Rules = {
    _BE.SEND: (_HERE, _B.IN_FLIGHT),
    _BE.RENUMBER: (_HERE, _B.SEALED),
    _BE.RETRY: ([_B.IN_FLIGHT], _B.WAITING),
    _BE.ACK: ([_B.IN_FLIGHT, _B.WAITING], _B.ACKED),
    _BE.REJECT: (_UNFINISHED, _B.NOT_WRITTEN),
    _BE.GIVE_UP: (_UNFINISHED, _B.UNKNOWN),
    _BE.SPLIT: (_UNFINISHED, _B.SPLIT),
}

# Whether a batch is stored: doubt ends by proof only, and what is proved does not change.
_P, _V = Persistence, Evidence
_SURELY_NOT: Final = (_P.NEVER_SENT, _P.REJECTED)
_NOT_PROVED: Final = (*_SURELY_NOT, _P.IN_DOUBT)
_STORED: _Rules = {
    _V.UNSENT: (_NOT_PROVED, None),
    _V.AMBIGUOUS: (_NOT_PROVED, _P.IN_DOUBT),
    _V.PROVED: (_NOT_PROVED, _P.STORED),
    _V.RENUMBERED: (_SURELY_NOT, _P.NEVER_SENT),
    _V.FORSAKEN: ([_P.IN_DOUBT], None),
}
_REFUSED: _Rules = {_V.REFUSED: (_SURELY_NOT, _P.REJECTED)}
_REFUSED_IN_DOUBT: _Rules = {_V.REFUSED: ([_P.IN_DOUBT], None)}

# The ladder by which doubt is resolved. Once the leader has lost its state, only RESOLVED ends the
# salvage.
_R, _RE = Rung, RecoveryEvent
_LADDER: _Rules = {
    _RE.HEAD_REFUSED: ([_R.CLEAR], _R.REFUSED),
    _RE.DOUBT_REMAINS: ([_R.REFUSED], _R.PROBING),
    _RE.ASK: ([_R.REFUSED], _R.ASKING),
    _RE.ANSWERED: ([_R.ASKING], _R.PROBING),
    _RE.STATE_LOST: ([_R.CLEAR, _R.REFUSED, _R.PROBING, _R.SALVAGE], _R.SALVAGE),
    _RE.RESOLVED: (list(_R), _R.CLEAR),
}
_LADDER_CLEARED: _Rules = {
    _RE.PROVED: ([_R.REFUSED, _R.PROBING], _R.CLEAR),
    _RE.RESTART: ([_R.CLEAR, _R.REFUSED, _R.ASKING, _R.PROBING], _R.CLEAR),
}
_LADDER_SALVAGE: _Rules = {
    _RE.PROVED: ([_R.SALVAGE], None),
    _RE.RESTART: ([_R.SALVAGE], None),
}

# Whether a broker gets Produce v14: it is asked, is spoken to, and answers; or v14 is held back.
_D, _DE = DiscoveryState, DiscoveryEvent
_ASKED: Final = (_D.ASKING, _D.ASKING_AGAIN)
_CONNECTED: Final = set(_D) - {_D.APART, _D.HELD_BACK}
_DISCOVERY: _Rules = {
    _DE.OPENED_WITHOUT: ([_D.APART, _D.HELD_BACK], _D.ABSENT),
    _DE.NAMED: (_ASKED, _D.SPEAKING),
    _DE.NOT_NAMED: (_ASKED, _D.ABSENT),
    _DE.NOT_GRANTED: (_ASKED, _D.NOT_GRANTED),
    _DE.SPEAK: ([_D.UNASKED, _D.HELD_BACK], _D.SPEAKING),
    _DE.ANSWERED: ([_D.SPEAKING], _D.HEARD),
    _DE.REFUSED: ([_D.APART, _D.SPEAKING, _D.HEARD], _D.HELD_BACK),
}
_DISCOVERY_FIRST: _Rules = {
    _DE.OPENED: ([_D.APART], _D.UNASKED),
    _DE.ASK: ([_D.UNASKED], _D.ASKING),
    _DE.LOST: (_CONNECTED, _D.APART),
}
_DISCOVERY_HELD: _Rules = {
    _DE.OPENED: ([_D.HELD_BACK], None),
    _DE.ASK: ([_D.NOT_GRANTED, _D.HELD_BACK], _D.ASKING_AGAIN),
    _DE.LOST: ([_D.HELD_BACK], None),
}

_I, _IE = IdentityState, IdentityEvent
_IDENTITY: _Rules = {
    _IE.ASK: ([_I.ABSENT], _I.REQUESTED),
    _IE.GRANT: ([_I.REQUESTED], _I.READY),
    _IE.REFUSE: ([_I.REQUESTED], _I.ABSENT),
    _IE.BUMP: ([_I.READY], None),
    _IE.EXHAUST: ([_I.READY], _I.ABSENT),
    _IE.DISOWN: ([_I.READY, _I.ABSENT], _I.ABSENT),
    _IE.RENEW: ([_I.READY, _I.ABSENT], _I.READY),
}

# A transaction is open until it is committed or aborted; both end with the producer ready.
_T, _TE = TransactionState, TransactionEvent
_RUNNING: Final = (_T.OPEN, _T.COMMITTING)
_TRANSACTION: _Rules = {
    _TE.INIT: ([_T.UNINITIALISED], _T.INITIALISING),
    _TE.GRANT: ([_T.INITIALISING, _T.RENEWING], _T.READY),
    _TE.REFUSE: ([_T.INITIALISING], _T.UNINITIALISED),
    _TE.BEGIN: ([_T.READY], _T.OPEN),
    _TE.COMMIT: ([_T.OPEN], _T.COMMITTING),
    _TE.DECIDE: ([_T.COMMITTING], _T.DECIDING),
    _TE.FAIL: ([*_RUNNING, _T.DECIDING], _T.ABORTABLE),
    _TE.ABORT: ([*_RUNNING, _T.ABORTABLE], _T.ABORTING),
    _TE.END: ([_T.COMMITTING, _T.DECIDING, _T.ABORTING], _T.READY),
    _TE.RENEW: ([_T.READY], _T.RENEWING),
    _TE.CHANGE_ID: ([_T.READY], _T.INITIALISING),
    _TE.DIE: (set(_T) - {_T.FATAL}, _T.FATAL),
}

_LINK: _Rules = {
    LinkEvent.OPENED: ([LinkState.CONNECTING], LinkState.READY),
    LinkEvent.LOST: ([LinkState.CONNECTING, LinkState.READY], LinkState.CLOSED),
}

_N, _NE = IncidentState, IncidentEvent
_INCIDENT: _Rules = {
    _NE.LASTED: ([_N.SUSPECTED], _N.OPEN),
    _NE.CALMED: ([_N.CALMING], _N.QUIET),
}
_INCIDENT_QUIET: _Rules = {
    _NE.APPEARED: ([_N.QUIET], _N.SUSPECTED),
    _NE.CEASED: ([_N.SUSPECTED], _N.QUIET),
}
_INCIDENT_OPEN: _Rules = {
    _NE.APPEARED: ([_N.CALMING], _N.OPEN),
    _NE.CEASED: ([_N.OPEN], _N.CALMING),
}

_TABLES: Final[tuple[tuple[Any, tuple[_Rules, ...]], ...]] = (
    (BATCH_TRANSITIONS, (_BATCH,)),
    (PERSISTENCE_TRANSITIONS, (_STORED, _REFUSED, _REFUSED_IN_DOUBT)),
    (RECOVERY_TRANSITIONS, (_LADDER, _LADDER_CLEARED, _LADDER_SALVAGE)),
    (DISCOVERY_TRANSITIONS, (_DISCOVERY, _DISCOVERY_FIRST, _DISCOVERY_HELD)),
    (IDENTITY_TRANSITIONS, (_IDENTITY,)),
    (TRANSACTION_TRANSITIONS, (_TRANSACTION,)),
    (LINK_TRANSITIONS, (_LINK,)),
    (INCIDENT_TRANSITIONS, (_INCIDENT, _INCIDENT_QUIET, _INCIDENT_OPEN)),
)


def drill_life_cycles(dice: Random) -> Iterator[str]:
    """Yield which row of one of the engine's tables is missing, wrong, or one too many."""
    table, groups = dice.choice(_TABLES)
    due = {
        (state, event): state if after is None else after
        for rules in groups
        for event, (states, after) in rules.items()
        for state in states
    }
    for row in sorted(due.keys() | table.keys(), key=str):
        if table.get(row) is not due.get(row):
            state, event = row
            what = f"the state after {event} in {state} (None: not allowed)"
            yield f"{what}: told {table.get(row)}, expected {due.get(row)}"
            return
