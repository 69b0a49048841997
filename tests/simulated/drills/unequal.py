"""The sentence with which a drill says that a part of the engine differs from the drill's model."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["unequal"]


def unequal(pairs: Mapping[str, tuple[object, object]]) -> str | None:
    """Return the first fact that is not as the model has it, in words; None if all are.

    The sentence "limit: 5, not 20" means that the engine's limit is 5, and should be 20.

    Args:
        pairs: by the name of a fact: what the engine tells, and what follows from the model.
    """
    for name, (told, due) in pairs.items():
        if told != due:
            return f"{name}: {told!r}, not {due!r}"
    return None
