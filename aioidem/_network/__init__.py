"""Open connections to brokers and send frames through them; no other package opens a socket."""

from __future__ import annotations
