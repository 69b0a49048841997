"""CRC-32C, by the package crc32c, without the modules that only its command line needs.

The package's `__init__` imports `importlib.metadata` for its version number, and argparse, which
together took a sixth of the time of `import aioidem`. So its compiled module is loaded by itself. A
release that has no module of this name is imported as usual, which is slower and works alike.

Rejected: the import when the first batch is built (it would hold the event loop for 25 ms);
google-crc32c (without a wheel for a platform it is pure Python, a thousand times slower).
"""

from __future__ import annotations

import importlib
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any

__all__ = ["crc32c", "load"]

_PACKAGE = "crc32c"


def load(name: str = "_crc32c") -> Any:
    """Return a module of the package crc32c; if there is no such module, the package itself."""
    package = PathFinder.find_spec(_PACKAGE)
    if package is not None:
        full_name = f"{_PACKAGE}.{name}"
        found = PathFinder.find_spec(full_name, package.submodule_search_locations)
        if found is not None and found.loader is not None:
            module = module_from_spec(found)
            found.loader.exec_module(module)
            return module
    return importlib.import_module(_PACKAGE)


if TYPE_CHECKING:
    from crc32c import crc32c
else:
    crc32c = load().crc32c
