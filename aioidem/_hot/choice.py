"""Load the compiled module, or say why pure Python runs instead."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

__all__ = ["load_compiled"]

_MODULE = "aioidem._hot._compiled"


def load_compiled() -> tuple[ModuleType, None] | tuple[None, str]:
    """Return the compiled module, or None and the reason why there is none to use."""
    if os.environ.get("AIOIDEM_NO_EXTENSIONS"):
        return None, "AIOIDEM_NO_EXTENSIONS is set"
    try:
        return importlib.import_module(_MODULE), None
    except ModuleNotFoundError:
        return None, "no compiled module is installed for this Python"
    except ImportError as error:
        return None, f"the compiled module cannot be loaded: {error}"
