"""The embedded broker's inside; what users import is `aioidem.broker`."""

from __future__ import annotations
