"""Questions to brokers beside the producer's own connections."""

from __future__ import annotations
