"""The abstract classes that a user of the drop-in subclasses, under aiokafka's names.

Rejected: asking for an instance of exactly this class. Who keeps aiokafka beside aioidem has
providers derived from aiokafka's, and they have the same two methods.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping

__all__ = ["AbstractTokenProvider"]


class AbstractTokenProvider(abc.ABC):
    """Gives the bearer token for SASL/OAUTHBEARER.

    It is asked once per connection, and again before a session ends (KIP-368): keep a token until
    shortly before it expires.
    """

    @abc.abstractmethod
    async def token(self) -> str:
        """The token to authenticate with now. It must not block the event loop."""

    def extensions(self) -> Mapping[str, str]:
        """SASL extensions to send with the token (KIP-342); none unless overridden."""
        return {}
