"""Errors of background tasks that aiokafka's producer does not retrieve when it is fenced.

asyncio reports such an error when the task is garbage collected, and the test that runs at that
moment would fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiokafka

_THEIRS = str(Path(aiokafka.__file__).parent)


@contextmanager
def leaks_of_aiokafka(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Keep the loop from reporting errors that were raised in aiokafka's code."""
    told = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if _raised_there(context.get("exception")):
            return
        if told is None:
            loop.default_exception_handler(context)
        else:
            told(loop, context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(told)


def _raised_there(error: BaseException | None) -> bool:
    trace = None if error is None else error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_THEIRS)
