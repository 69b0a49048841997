"""Adapters to other libraries; each imports its library, and nothing in aioidem imports them."""

from __future__ import annotations
