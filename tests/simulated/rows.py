"""Which rows of the engine's tables runs have taken, and in which company.

The engine's life cycles are tables of transitions, looked up by the function `transition`; the
codes of answers are rows of two more tables. `Rows.counted` replaces these look-ups while a block
runs, so it counts without any change of the engine.

A "pair" is what makes a run worth keeping although each of its rows is common: two rows of the
ladder that one partition took in succession, or a row that was taken after a fault of some kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from aioidem._engine import (
    batch,
    discovery,
    idempotence,
    incidents,
    links,
    produce,
    recovery,
    transactions,
)
from aioidem._engine.batch import BATCH_TRANSITIONS, PERSISTENCE_TRANSITIONS
from aioidem._engine.classify import _TABLE as _PRODUCE_CODES
from aioidem._engine.classify import Disposition, classify
from aioidem._engine.coordinator import _BY_KIND, _COMMON, CallKind, Verdict, classify_call
from aioidem._engine.discovery import DISCOVERY_TRANSITIONS
from aioidem._engine.idempotence import IDENTITY_TRANSITIONS
from aioidem._engine.incidents import INCIDENT_TRANSITIONS
from aioidem._engine.lifecycle import transition
from aioidem._engine.links import LINK_TRANSITIONS
from aioidem._engine.recovery import RECOVERY_TRANSITIONS, Recovery, RecoveryEvent
from aioidem._engine.transactions import TRANSACTION_TRANSITIONS

from .faults import Injector

__all__ = ["Rows", "all_rows", "is_compiled"]

_TABLES: dict[str, Mapping[Any, Any]] = {
    "ladder": RECOVERY_TRANSITIONS,
    "batch": BATCH_TRANSITIONS,
    "persistence": PERSISTENCE_TRANSITIONS,
    "discovery": DISCOVERY_TRANSITIONS,
    "identity": IDENTITY_TRANSITIONS,
    "transaction": TRANSACTION_TRANSITIONS,
    "link": LINK_TRANSITIONS,
    "incident": INCIDENT_TRANSITIONS,
}
_PAIRED = frozenset({"ladder", "persistence", "identity", "transaction"})
_MODULES = (batch, discovery, idempotence, incidents, links, recovery, transactions)


def is_compiled() -> bool:
    """Return whether the engine is compiled (`compiled`), so that nothing in it can be replaced."""
    return not str(produce.__file__).endswith(".py")


def all_rows() -> dict[str, list[str]]:
    """Return the names of all rows, by table."""
    rows = {
        name: [_named(state, event) for state, event in table] for name, table in _TABLES.items()
    }
    rows["produce code"] = [_code(code) for code in _PRODUCE_CODES]
    rows["coordinator code"] = [_code(code) for code in _COMMON]
    rows["coordinator code"] += [f"{kind.value} {_code(code)}" for kind, code in _BY_KIND]
    return rows


def _named(state: Any, event: Any) -> str:
    return f"{state.value} + {event.value}"


def _code(number: int) -> str:
    return ErrorCode(number).name


_NAMES = {id(table): name for name, table in _TABLES.items()}
_KEYS = {name: {key: f"{name}: {_named(*key)}" for key in table} for name, table in _TABLES.items()}


@dataclass
class Rows:
    """Counts of rows and pairs, each named as in `all_rows` with the table's name before it."""

    taken: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    _latest: str = "no fault"
    _rungs: dict[int, tuple[Recovery, str]] = field(default_factory=dict)

    def merge(self, other: Rows) -> None:
        """Add the counts of other runs."""
        self.taken.update(other.taken)
        self.pairs.update(other.pairs)

    def left(self) -> dict[str, list[str]]:
        """Return the rows that were never taken, by table."""
        return {
            table: [row for row in rows if f"{table}: {row}" not in self.taken]
            for table, rows in all_rows().items()
        }

    def lines(self) -> Iterator[str]:
        """Describe which rows were taken, and name those that were not."""
        if is_compiled():
            yield "rows of the tables are not counted when the engine is compiled"
            return
        left = self.left()
        for table, rows in all_rows().items():
            never = f"; never: {', '.join(left[table])}" if left[table] else ""
            yield f"rows of the table {table}: {len(rows) - len(left[table])} of {len(rows)}{never}"
        yield f"pairs of rows, and of faults and rows: {len(self.pairs)}"

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count while the block runs one schedule."""
        if is_compiled():
            yield  # compiled code calls what would be replaced
            return
        self._latest = "no fault"
        self._rungs.clear()
        looking_up = self._looking_up()
        places: list[tuple[Any, str, Any]] = [
            *((module, "transition", looking_up) for module in _MODULES),
            (produce, "classify", self._classifying()),
            (transactions, "classify_call", self._classifying_calls()),
            (Recovery, "move", self._moving(Recovery.move)),
            (Injector, "happened", self._happened),
        ]
        saved = [(owner, name, owner.__dict__[name]) for owner, name, _ in places]
        try:
            for owner, name, value in places:
                setattr(owner, name, value)
            yield
        finally:
            for owner, name, value in saved:
                setattr(owner, name, value)
            self._rungs.clear()

    def _happened(self, kind: str) -> None:
        self._latest = kind

    def _looking_up(self) -> Any:
        taken, pairs = self.taken, self.pairs

        def counting(table: Any, state: Any, event: Any, subject: object) -> Any:
            after = transition(table, state, event, subject)
            name = _NAMES[id(table)]
            row = _KEYS[name][state, event]
            taken[row] += 1
            if name in _PAIRED:
                pairs[f"{self._latest} / {row}"] += 1
            return after

        return counting

    def _moving(self, move: Any) -> Any:
        def moved(recovery: Recovery, event: RecoveryEvent) -> None:
            row = _named(recovery.rung, event)
            _, before = self._rungs.get(id(recovery), (None, "begin"))
            # The object is kept, so that no other one gets its id.
            self._rungs[id(recovery)] = recovery, row
            self.pairs[f"{before} > {row}"] += 1
            move(recovery, event)

        return moved

    def _classifying(self) -> Any:
        def classified(error_code: int, base_offset: int, **options: Any) -> Disposition:
            if error_code in _PRODUCE_CODES:
                self.taken[f"produce code: {_code(error_code)}"] += 1
                self.pairs[f"offset {base_offset >= 0} / {_code(error_code)}"] += 1
            return classify(error_code, base_offset, **options)

        return classified

    def _classifying_calls(self) -> Any:
        def classified(kind: CallKind, error_code: int) -> Verdict:
            own = f"{kind.value} " if (kind, error_code) in _BY_KIND else ""
            if own or error_code in _COMMON:
                self.taken[f"coordinator code: {own}{_code(error_code)}"] += 1
                self.pairs[f"{kind.value} / {_code(error_code)}"] += 1
            return classify_call(kind, error_code)

        return classified
