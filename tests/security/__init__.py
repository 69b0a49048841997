"""Tests of authentication, trust, and secrets that must never be shown."""

from __future__ import annotations
