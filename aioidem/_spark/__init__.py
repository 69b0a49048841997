"""The implementation behind `aioidem.spark`, which is what users import."""

from __future__ import annotations
