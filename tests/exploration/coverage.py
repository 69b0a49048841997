"""Coverage: which rows of the engine's transition tables an exploration used.

The engine's life cycles are tables of transitions, and the function `transition` looks up each of
them. This module replaces that function, so it counts the rows without any change of the engine.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aioidem._engine import batch as batch_module
from aioidem._engine import produce as produce_module
from aioidem._engine import recovery as recovery_module
from aioidem._engine import transactions as transactions_module
from aioidem._engine.batch import BATCH_TRANSITIONS, PERSISTENCE_TRANSITIONS
from aioidem._engine.classify import Disposition
from aioidem._engine.recovery import RECOVERY_TRANSITIONS
from aioidem._engine.transactions import TRANSACTION_TRANSITIONS

__all__ = ["Coverage"]

_TABLES: dict[str, Mapping[Any, Any]] = {
    "the ladder": RECOVERY_TRANSITIONS,
    "a batch": BATCH_TRANSITIONS,
    "what is known of a batch": PERSISTENCE_TRANSITIONS,
    "transactions": TRANSACTION_TRANSITIONS,
}


class Coverage:
    """Collects the rows of the transition tables that were used, and the classified error codes."""

    def __init__(self) -> None:
        self.rows: dict[str, set[tuple[enum.Enum, enum.Enum]]] = {name: set() for name in _TABLES}
        self.codes: set[tuple[int, bool]] = set()

    def add(
        self, rows: dict[str, set[tuple[enum.Enum, enum.Enum]]], codes: set[tuple[int, bool]]
    ) -> None:
        """Add what was collected in another process."""
        for name, taken in rows.items():
            self.rows[name] |= taken
        self.codes |= codes

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count while the block runs."""
        names = {id(table): name for name, table in _TABLES.items()}
        rows, codes = self.rows, self.codes

        # A function here may stand for one that a mutant has put in its place.
        def counting(transition: Callable[..., Any]) -> Callable[..., Any]:
            def counted(table: Any, state: Any, event: Any, subject: object) -> Any:
                rows[names[id(table)]].add((state, event))
                return transition(table, state, event, subject)

            return counted

        def classifying(classify: Callable[..., Disposition]) -> Callable[..., Disposition]:
            def counted(error_code: int, base_offset: int, **options: Any) -> Disposition:
                codes.add((error_code, base_offset >= 0))
                return classify(error_code, base_offset, **options)

            return counted

        places: list[tuple[Any, str, Any]] = [
            (recovery_module, "transition", counting),
            (batch_module, "transition", counting),
            (transactions_module, "transition", counting),
            (produce_module, "classify", classifying),
        ]
        saved = [(module, name, getattr(module, name)) for module, name, _ in places]
        try:
            for (module, name, around), (*_, function) in zip(places, saved, strict=True):
                setattr(module, name, around(function))
            yield
        finally:
            for module, name, value in saved:
                setattr(module, name, value)

    def lines(self) -> Iterator[str]:
        """Describe which rows were used, and name the rows that were not."""
        for name, table in _TABLES.items():
            taken = self.rows[name]
            left = [
                f"{state.value}: {event.value}"
                for state, event in table
                if (state, event) not in taken
            ]
            missing = f"; not taken: {', '.join(left)}" if left else ""
            yield f"{name}: {len(taken)} of {len(table)} rows{missing}"
        codes = ", ".join(str(code) for code in sorted({code for code, _ in self.codes}))
        yield f"error codes in answers: {codes or 'none'}"
