"""The errors behind `aioidem.errors`: `local` ones, broker `codes`, and `aiokafka_names`."""

from __future__ import annotations
