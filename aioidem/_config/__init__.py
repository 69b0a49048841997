"""The options: what they mean, what they may be, and how secrets among them are kept."""

from __future__ import annotations
