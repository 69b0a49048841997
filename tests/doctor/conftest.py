"""The event loop of the tests of `aioidem doctor`: the command runs on asyncio."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Run each ``@pytest.mark.anyio`` test on asyncio."""
    return "asyncio", {}
