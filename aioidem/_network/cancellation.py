"""Whether the current task has been cancelled by anyio, at a tenth of the cost of anyio's check.

`anyio.lowlevel.checkpoint_if_cancelled` finds the event loop's library anew at each call, and needs
a coroutine: 1 to 2 us, more than all else that is done to queue a record. On asyncio the answer is
in anyio's own records of the task, and is nearly always "no".

Invariant: `may_be_cancelled` returns True whenever anyio's check would raise, and also whenever the
answer cannot be known, as on trio. After True the caller awaits anyio's check, which has the last
word. Only speed depends on this module: if a release of anyio lacks the private names that are used
here, the answer is always True.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError, current_task
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["ends_task", "may_be_cancelled"]

_NAMES = ("cancel_called", "shield", "_parent_scope")

_state_of: Callable[[Any], Any] | None = None
"""A function that returns anyio's record of a task, or None if anyio has no record of the task.

The variable is None until the first call of `may_be_cancelled` on asyncio has found the function.
"""


def may_be_cancelled() -> bool:
    """Return whether an anyio scope has cancelled the current task; True also if that is not known.

    asyncio's own `Task.cancel()` is ignored here, as anyio's check ignores it: asyncio itself
    raises that cancellation where the task waits next.
    """
    try:
        task = current_task()
    except RuntimeError:  # no loop of asyncio is running here
        return True
    if task is None or _state_of is None:
        return task is None or _find_records()
    state = _state_of(task)
    if state is None:
        return False
    scope = state.cancel_scope
    while scope is not None:
        if scope.cancel_called:
            return True
        if scope.shield:
            return False
        scope = scope._parent_scope  # noqa: SLF001 - there is no public way to it
    return False


def _is_foreign(error: BaseException) -> bool:
    """Return whether an exception is asyncio's cancellation, but nobody has cancelled this task.

    `await future` raises it for a future that somebody else has cancelled. In a task that nobody
    has cancelled, that is a failure of what was awaited; passed on, it would end the task without a
    word. anyio's scopes cancel by `Task.cancel()` as well.
    """
    if not isinstance(error, CancelledError):
        return False
    try:
        task = current_task()
    except RuntimeError:  # trio runs here, whose own cancellation has another class
        return True
    return task is None or not task.cancelling()


def ends_task(error: BaseException) -> bool:
    """Return whether an exception has to be passed on, as it ends the current task or the program.

    That is the task's own cancellation, and such as KeyboardInterrupt. What else the user's code
    raises, also the cancellation of another task, is a failure of that code.
    """
    return not isinstance(error, Exception) and not _is_foreign(error)


def _find_records() -> bool:
    """Set `_state_of` for later calls of `may_be_cancelled`, if anyio has records of tasks.

    Returns:
        Always True, the answer of `may_be_cancelled` if it is not known whether the task is
        cancelled: this function does not look at the current task.
    """
    global _state_of  # noqa: PLW0603 - anyio loads its backend when a loop first uses it
    backend = sys.modules.get("anyio._backends._asyncio")
    states = getattr(backend, "_task_states", None)
    scope = getattr(backend, "CancelScope", None)
    has_scope = hasattr(getattr(backend, "TaskState", None), "cancel_scope")
    if isinstance(states, Mapping) and has_scope and scope is not None:
        made = scope()
        if all(hasattr(made, name) for name in _NAMES):
            _state_of = states.get
    return True
