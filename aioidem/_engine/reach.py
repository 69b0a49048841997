"""Reach: since when no broker can be reached, and why.

Connections that are closed because they are idle do not count: the next one may well be opened.
"""

from __future__ import annotations

from collections.abc import Iterable

from aioidem import errors

__all__ = ["Reach", "reason_of"]

_NAMED = 3


def reason_of(error: Exception) -> str:
    """Return an error's text without the name of its class."""
    return str(error.args[0] if error.args else error)


class Reach:
    """Whether any broker can be reached; if not, since when, and how many attempts have failed."""

    __slots__ = ("attempts", "since")

    def __init__(self) -> None:
        # Since when no connection is up although one was wanted, in seconds; None while one is up.
        self.since: float | None = None
        # The number of connections that failed since then.
        self.attempts = 0

    def up(self) -> None:
        """Note that a connection is up."""
        self.since = None
        self.attempts = 0

    def failed(self, now: float) -> None:
        """Note that a connection failed, and that no other one is up."""
        if self.since is None:
            self.since = now
        self.attempts += 1

    def failure(
        self, errors_by_address: Iterable[Exception | None], now: float
    ) -> errors.KafkaConnectionError | None:
        """Return an error that says since when no broker can be reached; None if one can be.

        Its ``__cause__`` is one of the given errors.

        Args:
            errors_by_address: why the last connection to each address failed, if it did.
            now: seconds.
        """
        if self.since is None:
            return None
        failed = [error for error in errors_by_address if error is not None]
        reasons = list(dict.fromkeys(map(reason_of, failed)))
        more = f"; {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
        attempts = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        failure = errors.KafkaConnectionError(
            f"no broker can be reached for {now - self.since:.1f} s and {attempts}: "
            f"{'; '.join(reasons[:_NAMED]) or 'the connections were closed'}{more}"
        )
        failure.__cause__ = failed[0] if failed else None
        return failure
