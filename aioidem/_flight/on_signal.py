"""Signals: tell those who listen that the process got a signal, and put old handlers back.

A signal has one handler in a process, and a process may have several producers. So the first one
that listens to a signal sets the handler, and the last one puts the old handler back.

Invariants:

- A handler runs between any two instructions of the main thread. So it only schedules: what a
  listener does for the signal runs later, on its event loop.
- A handler that the program had set is called as well. One that the program sets later stays.
- Who listens is referred to weakly, so a producer that nobody closed can be collected.

Rejected: ``loop.add_signal_handler``. trio has none, it forgets the old handler, and a second
producer would replace the first one's.
"""

from __future__ import annotations

import signal
import threading
import weakref
from types import FrameType
from typing import Any, Final, Protocol

from aioidem import errors

__all__ = ["Listener", "listen", "stop_listening"]


class Listener(Protocol):
    """Somebody who listens to a signal."""

    def on_signal(self) -> None:
        """Schedule what is to be done for the signal."""


class _Shared:
    """One signal of the process, and who listens to it."""

    __slots__ = ("listeners", "number", "old")

    def __init__(self, number: int) -> None:
        self.number = number
        self.listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self.old: Any = signal.signal(number, self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Tell those who listen, then call the handler that the program had set."""
        for each in list(self.listeners):
            each.on_signal()
        if callable(self.old):
            self.old(number, frame)

    def restore(self) -> None:
        """Put the old handler back, unless the program has set another one meanwhile."""
        if signal.getsignal(self.number) == self.handle:
            signal.signal(self.number, signal.SIG_DFL if self.old is None else self.old)


_shared: Final[dict[int, _Shared]] = {}
"""By number: the signals that have our handler. Only the main thread changes it."""


def listen(name: str, listener: Listener) -> None:
    """Tell a listener of each signal from now on.

    Args:
        name: the signal's name, such as ``SIGUSR1``.
        listener: who is told, in the main thread, between any two instructions of it.

    Raises:
        ConfigError: The call does not come from the main thread.
    """
    if not _in_main_thread():
        raise errors.ConfigError(
            f"flight_record_signal={name!r}: expected a producer that is started in the main "
            "thread, the only one in which Python handles signals"
        )
    number = signal.Signals[name].value
    shared = _shared.get(number)
    if shared is None:
        shared = _shared[number] = _Shared(number)
    shared.listeners.add(listener)


def stop_listening(name: str, listener: Listener) -> None:
    """Undo `listen`. In another thread than the main one the handler stays, and does nothing."""
    number = signal.Signals[name].value
    shared = _shared.get(number)
    if shared is None:
        return
    shared.listeners.discard(listener)
    if not shared.listeners and _in_main_thread():
        del _shared[number]
        shared.restore()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
