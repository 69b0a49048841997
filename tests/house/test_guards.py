"""The guards of tests/conftest.py find library code that blocks the loop, and listening ports."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from blockbuster import BlockingError

import aioidem

_LIBRARY = Path(aioidem.__file__).parent


def _code_in(module: Path) -> Callable[[], Any]:
    """Make a function that lists a folder and whose code claims to be in the file ``module``."""
    scope: dict[str, Any] = {}
    source = "import os\ndef block(): return os.listdir()"
    exec(compile(source, str(module), "exec"), scope)  # noqa: S102 - ours
    function = scope["block"]
    assert isinstance(function, FunctionType)
    return function


@pytest.mark.anyio
async def test_library_code_that_blocks_the_loop_is_caught(anyio_backend_name: str) -> None:
    """Library code that blocks an asyncio loop raises BlockingError."""
    block = _code_in(_LIBRARY / "sender.py")
    if anyio_backend_name == "trio":
        block()  # blockbuster supports asyncio only
        return
    with pytest.raises(BlockingError):
        block()


@pytest.mark.anyio
async def test_a_test_may_block_by_itself() -> None:
    """A test's own code may block the event loop."""
    assert _code_in(Path(__file__))()


def test_a_listening_port_is_seen_while_it_is_open(
    listening_ports: Callable[[], set[int]],
) -> None:
    """The guard sees a listening port exactly as long as it is open."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port in listening_ports()
    assert port not in listening_ports()
