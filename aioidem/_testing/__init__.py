"""The inside of `aioidem.testing`, which is what users import."""

from __future__ import annotations
