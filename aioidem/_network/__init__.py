"""Connections to brokers, which carry frames; no other package opens a socket."""

from __future__ import annotations
