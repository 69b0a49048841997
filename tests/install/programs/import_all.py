"""Import every module of the installed package; print the packages that are missing for some."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys

import aioidem

missing: set[str] = set()
for module in pkgutil.walk_packages(aioidem.__path__, "aioidem."):
    if module.name == "aioidem.__main__":
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing.add((error.name or "").partition(".")[0])
json.dump(sorted(missing), sys.stdout)
