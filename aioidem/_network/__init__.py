"""Connections to brokers, which send and receive frames; no other package opens a socket."""

from __future__ import annotations
