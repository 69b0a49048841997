"""What is known of an error code that no table names: whether it may pass by itself.

A broker newer than this client answers with codes that nobody here has heard of, as for a topic
that became read-only (KIP-1279). Java and librdkafka fail such a request at once. So does aioidem,
unless there is reason to expect another answer later: the code is one that Kafka documents as
retriable, or the broker says so in the words it sends along (KIP-467).

It decides only whether to ask again. What was asked may have been carried out in either case.
"""

from __future__ import annotations

import re

__all__ = ["may_pass"]

_RETRIABLE = frozenset(
    {2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88}
    | {89, 100, 103, 106, 122, 123, 133}
)
"""What Kafka 4.3's list of error codes marks as retriable. Above 133 it has none."""

_SAYS_SO = re.compile(r"\b(retr(y|ied|iable)|try again|temporar(y|ily))\b", re.IGNORECASE)
_DENIES_IT = re.compile(r"(\b(not|never|no|cannot|non)|n't)\b[\s-]*(\w+ ){0,2}?retr", re.IGNORECASE)


def may_pass(error_code: int, message: str | None = None) -> bool:
    """Say whether the same request may be answered otherwise later.

    Args:
        error_code: a code that the caller's own table does not name.
        message: what the broker wrote beside it, if anything.
    """
    if error_code in _RETRIABLE:
        return True
    if not message or _DENIES_IT.search(message):
        return False
    return _SAYS_SO.search(message) is not None
