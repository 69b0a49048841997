"""Requests that the producer itself never sends, such as OffsetFetch; each opens a connection."""

from __future__ import annotations
