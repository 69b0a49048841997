"""The implementation of `aioidem.testing`; users import only that public module."""

from __future__ import annotations
