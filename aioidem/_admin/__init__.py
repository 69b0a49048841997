"""Requests that the producer never sends, each over a connection of its own."""

from __future__ import annotations
