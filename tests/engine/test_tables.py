"""The transition tables of the state machines: every pair of state and event, and general rules.

A pair leads to the state that the table names, or raises InternalError and leaves the state as it
was; there is no third outcome.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest

from aioidem._engine.batch import (
    BATCH_TRANSITIONS,
    PERSISTENCE_TRANSITIONS,
    Batch,
    BatchEvent,
    BatchState,
    Evidence,
    Persistence,
)
from aioidem._engine.discovery import DISCOVERY_TRANSITIONS, DiscoveryEvent, DiscoveryState
from aioidem._engine.idempotence import (
    IDENTITY_TRANSITIONS,
    IdentityEvent,
    IdentityLedger,
    IdentityState,
    ProducerIdentity,
)
from aioidem._engine.links import LINK_TRANSITIONS, LinkEvent, LinkState
from aioidem._engine.recovery import RECOVERY_TRANSITIONS, Recovery, RecoveryEvent, Rung
from aioidem._engine.transactions import (
    TRANSACTION_TRANSITIONS,
    TransactionEvent,
    TransactionState,
)
from aioidem.errors import InternalError

from .driver import made_link

TABLES: dict[str, tuple[dict[Any, Any], type[Enum], type[Enum]]] = {
    "batch": (BATCH_TRANSITIONS, BatchState, BatchEvent),
    "persistence": (PERSISTENCE_TRANSITIONS, Persistence, Evidence),
    "identity": (IDENTITY_TRANSITIONS, IdentityState, IdentityEvent),
    "link": (LINK_TRANSITIONS, LinkState, LinkEvent),
    "discovery": (DISCOVERY_TRANSITIONS, DiscoveryState, DiscoveryEvent),
    "recovery": (RECOVERY_TRANSITIONS, Rung, RecoveryEvent),
    "transaction": (TRANSACTION_TRANSITIONS, TransactionState, TransactionEvent),
}
FINAL = {BatchState.ACKED, BatchState.NOT_WRITTEN, BatchState.UNKNOWN, BatchState.SPLIT}
UNTOUCHABLE = [state for state in BatchState if state in FINAL | {BatchState.IN_FLIGHT}]


def make_batch() -> Batch:
    return Batch(
        ordinal=0,
        records=[],
        data=b"bytes",
        identity=ProducerIdentity(1, 0),
        base=7,
        deadline=1.0,
        max_timestamp_ms=0,
    )


def in_table(
    holder: Any, field: str, act: Callable[[], object], state: Enum, expected: Enum | None
) -> None:
    """Check that `act` moves the field from `state` to `expected`, or raises where that is None."""
    setattr(holder, field, state)
    if expected is None:
        with pytest.raises(InternalError):
            act()
        assert getattr(holder, field) is state
    else:
        act()
        assert getattr(holder, field) is expected


@pytest.mark.parametrize(
    ("state", "event"), list(itertools.product(BatchState, BatchEvent)), ids=lambda v: v.value
)
def test_every_batch_pair_is_in_the_table_or_raises(state: BatchState, event: BatchEvent) -> None:
    batch = make_batch()
    expected = BATCH_TRANSITIONS.get((state, event))
    in_table(batch, "state", lambda: batch.move(event), state, expected)


@pytest.mark.parametrize(
    ("known", "evidence"), list(itertools.product(Persistence, Evidence)), ids=lambda v: v.value
)
def test_every_persistence_pair_is_in_the_table_or_raises(
    known: Persistence, evidence: Evidence
) -> None:
    batch = make_batch()
    expected = PERSISTENCE_TRANSITIONS.get((known, evidence))
    in_table(batch, "persistence", lambda: batch.learn(evidence, 5.0), known, expected)


@pytest.mark.parametrize(
    ("state", "event"), list(itertools.product(LinkState, LinkEvent)), ids=lambda v: v.value
)
def test_every_link_pair_is_in_the_table_or_raises(state: LinkState, event: LinkEvent) -> None:
    link = made_link()
    in_table(link, "state", lambda: link.move(event), state, LINK_TRANSITIONS.get((state, event)))


@pytest.mark.parametrize(
    ("rung", "event"), list(itertools.product(Rung, RecoveryEvent)), ids=lambda v: v.value
)
def test_every_recovery_pair_is_in_the_table_or_raises(rung: Rung, event: RecoveryEvent) -> None:
    recovery = Recovery()
    expected = RECOVERY_TRANSITIONS.get((rung, event))
    in_table(recovery, "rung", lambda: recovery.move(event), rung, expected)


@pytest.mark.parametrize(
    ("state", "event"), list(itertools.product(IdentityState, IdentityEvent)), ids=lambda v: v.value
)
def test_every_identity_pair_is_in_the_table_or_raises(
    state: IdentityState, event: IdentityEvent
) -> None:
    ledger = IdentityLedger()
    if state is IdentityState.READY:
        epoch = 32767 if event is IdentityEvent.EXHAUST else 3
        ledger.current = ProducerIdentity(9, epoch)
    acts: dict[IdentityEvent, Callable[[], object]] = {
        IdentityEvent.ASK: ledger.ask,
        IdentityEvent.GRANT: lambda: ledger.grant(10, 0),
        IdentityEvent.REFUSE: ledger.refuse,
        IdentityEvent.BUMP: ledger.bump,
        IdentityEvent.EXHAUST: ledger.bump,
        IdentityEvent.RENEW: lambda: ledger.renew(11, 0),
        IdentityEvent.DISOWN: ledger.disown,
    }
    expected = IDENTITY_TRANSITIONS.get((state, event))
    if expected is None and event in {IdentityEvent.BUMP, IdentityEvent.EXHAUST}:
        # In these states a bump does nothing, because a new producer id is requested already.
        ledger.state = state
        ledger.bump()
        assert ledger.state is state
        assert ledger.bumps == 0
        return
    in_table(ledger, "state", acts[event], state, expected)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_known_states_and_inputs_only(name: str) -> None:
    table, states, inputs = TABLES[name]
    for (state, event), following in table.items():
        assert isinstance(state, states)
        assert isinstance(event, inputs)
        assert isinstance(following, states)


@pytest.mark.parametrize("name", TABLES)
def test_every_state_is_reached_and_every_input_is_used(name: str) -> None:
    table, states, inputs = TABLES[name]
    first = next(iter(states))
    reached, todo = {first}, [first]
    while todo:
        at = todo.pop()
        for (state, _), following in table.items():
            if state is at and following not in reached:
                reached.add(following)
                todo.append(following)
    assert reached == set(states)
    assert {event for _, event in table} == set(inputs)


def test_a_final_batch_state_is_final() -> None:
    """No event leads out of a final batch state, and a batch is settled in these states only."""
    assert not [pair for pair in BATCH_TRANSITIONS if pair[0] in FINAL]
    for state in BatchState:
        batch = make_batch()
        batch.state = state
        assert batch.settled is (state in FINAL)


def test_every_unfinished_batch_state_leads_to_each_verdict_that_is_true_of_it() -> None:
    """A batch that was sent can reach every final state; one that waits to be sent, all but ACKED.

    A sealed batch can end UNKNOWN, because `in_doubt="resend"` seals batches in doubt again.
    """
    verdicts = {
        state: {to for (at, _), to in BATCH_TRANSITIONS.items() if at is state and to in FINAL}
        for state in set(BatchState) - FINAL
    }
    assert verdicts == {
        BatchState.SEALED: FINAL - {BatchState.ACKED},
        BatchState.IN_FLIGHT: FINAL,
        BatchState.WAITING: FINAL,
    }


def test_doubt_is_sticky_and_only_a_proof_clears_it() -> None:
    """Only a proof leads out of IN_DOUBT."""
    for (known, evidence), after in PERSISTENCE_TRANSITIONS.items():
        if known is Persistence.IN_DOUBT:
            expected = Persistence.STORED if evidence is Evidence.PROVED else Persistence.IN_DOUBT
            assert after is expected


def test_a_batch_in_doubt_has_no_way_to_new_numbers() -> None:
    """The table has no transition that renumbers a batch in doubt."""
    assert (Persistence.IN_DOUBT, Evidence.RENUMBERED) not in PERSISTENCE_TRANSITIONS


def test_what_is_stored_is_final() -> None:
    assert not [known for known, _ in PERSISTENCE_TRANSITIONS if known is Persistence.STORED]


def test_ambiguous_evidence_always_ends_in_doubt() -> None:
    for known in set(Persistence) - {Persistence.STORED}:
        after = PERSISTENCE_TRANSITIONS[known, Evidence.AMBIGUOUS]
        assert after is Persistence.IN_DOUBT


def test_renumbering_a_batch_in_doubt_raises_and_changes_nothing() -> None:
    """Renumbering a batch in doubt raises InternalError and changes nothing."""
    batch = make_batch()
    batch.state, batch.persistence = BatchState.WAITING, Persistence.IN_DOUBT
    with pytest.raises(InternalError):
        batch.renumber(ProducerIdentity(1, 1), 0, b"other", 0)
    assert (batch.state, batch.persistence) == (BatchState.WAITING, Persistence.IN_DOUBT)
    assert (batch.identity, batch.base, batch.data) == (ProducerIdentity(1, 0), 7, b"bytes")


@pytest.mark.parametrize("state", [*UNTOUCHABLE])
def test_renumbering_a_settled_or_outstanding_batch_raises(state: BatchState) -> None:
    """Renumbering a batch in flight or settled raises InternalError and changes nothing."""
    batch = make_batch()
    batch.state, batch.persistence = state, Persistence.REJECTED
    with pytest.raises(InternalError):
        batch.renumber(ProducerIdentity(1, 1), 0, b"other", 0)
    assert (batch.identity, batch.base, batch.data) == (ProducerIdentity(1, 0), 7, b"bytes")
    assert batch.state is state


def test_renumbering_a_rejected_batch_makes_it_one_that_was_never_sent() -> None:
    batch = make_batch()
    batch.state, batch.persistence = BatchState.WAITING, Persistence.REJECTED
    batch.renumber(ProducerIdentity(1, 1), 0, b"other", 0)
    assert (batch.state, batch.persistence) == (BatchState.SEALED, Persistence.NEVER_SENT)
    assert batch.wire_base == 0


def test_the_first_moment_of_doubt_is_kept() -> None:
    batch = make_batch()
    batch.learn(Evidence.REFUSED, 1.0)
    assert batch.doubted_at is None
    batch.learn(Evidence.AMBIGUOUS, 2.0)
    batch.learn(Evidence.REFUSED, 3.0)
    batch.learn(Evidence.AMBIGUOUS, 4.0)
    assert batch.doubted_at == 2.0


def test_a_new_connection_ends_every_rung_but_salvage() -> None:
    """A new connection resets the recovery from doubt to CLEAR, from every rung but SALVAGE.

    A rung is a step of the recovery. Most rungs rest on refusals, which count for one connection
    only. SALVAGE means that the leader has lost the producer's state, which stays true.
    """
    for rung in Rung:
        expected = Rung.SALVAGE if rung is Rung.SALVAGE else Rung.CLEAR
        assert RECOVERY_TRANSITIONS[rung, RecoveryEvent.RESTART] is expected


def test_a_closed_link_stays_closed() -> None:
    assert not [state for state, _ in LINK_TRANSITIONS if state is LinkState.CLOSED]
