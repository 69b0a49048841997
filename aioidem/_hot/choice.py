"""Load the compiled module, or say why pure Python runs instead."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from types import ModuleType

__all__ = ["load_compiled"]

_MODULE = "aioidem._hot._compiled"


def load_compiled(names: Iterable[str]) -> tuple[ModuleType, None] | tuple[None, str]:
    """Return the compiled module, or None and the reason why there is none to use.

    Args:
        names: What the module must have. One that was built from other sources may lack some.
    """
    if os.environ.get("AIOIDEM_NO_EXTENSIONS"):
        return None, "AIOIDEM_NO_EXTENSIONS is set"
    try:
        module = importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        return None, "no compiled module is installed for this Python"
    except ImportError as error:
        return None, f"the compiled module cannot be loaded: {error}"
    if any(not hasattr(module, name) for name in names):
        return None, "the compiled module is of another version of aioidem: install aioidem again"
    return module, None
