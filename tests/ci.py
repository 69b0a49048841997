"""Whether this is CI, where a test that cannot run fails instead of being skipped.

What a test needs and a machine lacks (a broker's jars, a C compiler, a package index) is a reason
to skip the test on a contributor's machine, and a defect of the machine on CI (`CI=true`).
"""

from __future__ import annotations

import os
from typing import Final, NoReturn

import pytest

__all__ = ["CI", "lacking"]

CI: Final = os.environ.get("CI", "").lower() == "true"


def lacking(reason: str) -> NoReturn:
    """Skip the present test for want of something; on CI, fail it."""
    if CI:
        pytest.fail(reason)
    pytest.skip(reason)
