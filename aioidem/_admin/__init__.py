"""Requests that the producer itself never sends, such as OffsetFetch."""

from __future__ import annotations
