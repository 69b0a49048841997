"""Every line that the producer logs: `LogLine` lists them, and `write` is the one way to log one.

Each message ends with the line's name in brackets, for example ``[no-broker]``. docs/operations.md
explains each line by that name. The same name is the attribute `incident` of the `LogRecord`,
beside the other structured fields (`extra` of the logging module).

Invariants: no message and no field contains a secret, a record's key, value or header. A name that
is in use never gets another meaning.
"""

from __future__ import annotations

import enum
import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Self

__all__ = ["LogLine", "Phase", "write", "write_raised"]

_logger = logging.getLogger("aioidem")


class Phase(enum.Enum):
    """Where in an incident a line belongs."""

    BEGINS = "begins"
    CONTINUES = "continues"
    ENDS = "ends"
    ONCE = "once"
    """The line is about something that happened at one moment."""


class LogLine(enum.Enum):
    """A line of the log: its name, its level, and how often it may be repeated.

    Attributes:
        level: The level of the logging module; an incident that another one explains is logged
            at INFO.
        burst: How many lines of this name are logged at once before further ones are counted.
    """

    level: int
    burst: int

    def __new__(cls, name: str, level: int, burst: int = 5) -> Self:
        """Create a member whose value is its name."""
        member = object.__new__(cls)
        member._value_ = name
        member.level = level
        member.burst = burst
        return member

    # Incidents, which begin, continue and end.
    AUTHENTICATION = "authentication", logging.WARNING
    NO_BROKER = "no-broker", logging.WARNING
    LEADER_MISSING = "leader-missing", logging.WARNING
    LEADER_UNREACHABLE = "leader-unreachable", logging.WARNING
    THROTTLED = "throttled", logging.WARNING
    IN_DOUBT = "in-doubt", logging.WARNING
    BUFFER_FULL = "buffer-full", logging.WARNING
    UNSEEN_FAILURES = "unseen-failures", logging.WARNING
    # What happens at one moment.
    DATA_LOSS = "data-loss", logging.WARNING
    EPOCH_BUMPED = "epoch-bumped", logging.WARNING, 1
    TRANSACTION_FAILED = "transaction-failed", logging.WARNING
    PRODUCER_ID_SHARED = "producer-id-shared", logging.WARNING
    STATE_EXPIRED = "state-expired", logging.WARNING
    SHORT_EXPIRATION = "short-expiration", logging.WARNING
    TOPIC_RECREATED = "topic-recreated", logging.WARNING
    CLUSTER_CHANGED = "cluster-changed", logging.WARNING
    OTHER_CLUSTER = "other-cluster", logging.WARNING
    FEWER_RETAINED = "fewer-retained", logging.WARNING
    LIMIT_UNKNOWN = "limit-unknown", logging.WARNING
    WINDOW_WITHHELD = "window-withheld", logging.WARNING
    WINDOW_SOURCE = "window-source", logging.INFO
    WINDOW_CHANGED = "window-changed", logging.INFO, 1
    FLIGHT_RECORD = "flight-record", logging.WARNING
    FLIGHT_RECORD_FAILED = "flight-record-failed", logging.WARNING
    LOOP_BLOCKED = "loop-blocked", logging.WARNING, 1
    # The end of a producer.
    NEVER_LOOKED_AT = "never-looked-at", logging.ERROR
    UNCLOSED = "unclosed", logging.ERROR
    BACKGROUND_FAILED = "background-failed", logging.ERROR
    # The user's own code and options.
    CALLBACK_RAISED = "callback-raised", logging.ERROR
    OBSERVER_RAISED = "observer-raised", logging.ERROR
    CREDENTIALS_READABLE = "credentials-readable", logging.WARNING
    SASL_UNUSED = "sasl-unused", logging.WARNING
    # For debugging.
    CONNECTION_ENDED = "connection-ended", logging.DEBUG


def write(
    line: LogLine,
    text: str,
    *,
    client_id: str | None = None,
    level: int | None = None,
    phase: Phase = Phase.ONCE,
    fields: Mapping[str, object] | None = None,
    error: BaseException | None = None,
    stacklevel: int = 2,
) -> None:
    """Log a line.

    Args:
        line: Which line.
        text: The message, without the producer's name.
        client_id: The producer's name; None for a line that belongs to no producer.
        level: The level; None takes the line's own.
        phase: Where in an incident the line belongs.
        fields: More attributes of the `LogRecord`.
        error: An exception that is logged with its traceback.
        stacklevel: Whose line of code the record names: 2 is the caller's.
    """
    chosen = line.level if level is None else level
    if not _logger.isEnabledFor(chosen):
        return
    extra = {"incident": line.value, "phase": phase.value, "client_id": client_id}
    try:
        _logger.log(
            chosen,
            "%s [%s]",
            text if client_id is None else f"{client_id}: {text}",
            line.value,
            extra=extra | dict(fields or {}),
            exc_info=error,
            stacklevel=stacklevel,
        )
    except Exception:  # noqa: BLE001 - a filter or handler of the program's raised it
        # What the logging module does itself where a handler fails.
        if logging.raiseExceptions and sys.stderr is not None:
            traceback.print_exc()


def write_raised(line: LogLine, text: str, error: BaseException) -> None:
    """Log what code of the user has raised, as asyncio does with what a callback raises.

    A `CancelledError` is logged, too: it may come from `result()` of a cancelled future, and does
    not cancel the task in which the code happens to run.

    Args:
        line: Which line.
        text: The message.
        error: The exception.

    Raises:
        BaseException: The exception itself, if it is one that has to end the program.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit):
        raise error
    write(line, text, error=error, stacklevel=3)
