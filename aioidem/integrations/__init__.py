"""Adapters to other people's libraries. Each imports its library when it is imported itself, and
nothing in aioidem imports one of these.
"""

from __future__ import annotations
