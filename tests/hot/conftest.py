"""The two forms of the hot loops, pure and compiled, as one fixture.

Where no compiled module is installed its tests are skipped, but on CI (``CI=true``) they fail if
there is a C compiler, because then the installation should have built it.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sysconfig
from types import SimpleNamespace
from typing import Any

import pytest

from aioidem._hot import columns, encoding, fields, hashing, queueing, record, settling
from tests.ci import CI

# This object has only the names in `__all__`. Hypothesis prints it, and the modules' other names
# include long tables.
_MODULES = (encoding, columns, fields, hashing, queueing, record, settling)
PURE: Any = SimpleNamespace(
    **{name: getattr(module, name) for module in _MODULES for name in module.__all__}
)


def compiler() -> str | None:
    """Return the path of the C compiler that builds extensions for this Python, if it is there."""
    words = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    return shutil.which(words[0])


@pytest.fixture(scope="session")
def compiled() -> Any:
    """Return the compiled module, whichever form the library uses."""
    try:
        return importlib.import_module("aioidem._hot._compiled")
    except ImportError as error:
        reason = f"{error}: `pip install --editable .` builds it"
        if CI and compiler() is not None:
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session", params=["pure", "compiled"])
def form(request: pytest.FixtureRequest) -> Any:
    """Return the functions of one form."""
    return PURE if request.param == "pure" else request.getfixturevalue("compiled")


@pytest.fixture(scope="session")
def pure() -> Any:
    """Return the functions of the pure form."""
    return PURE
