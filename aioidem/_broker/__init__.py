"""The implementation of the embedded broker; users import `aioidem.broker`."""

from __future__ import annotations
