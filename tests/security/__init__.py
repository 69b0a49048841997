"""Who is let in, who is trusted, and what is never shown."""

from __future__ import annotations
