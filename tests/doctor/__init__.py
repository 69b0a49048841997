"""Tests of `aioidem doctor`."""

from __future__ import annotations
