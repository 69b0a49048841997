"""The native producer, and what it is made of outside of the engine.

`sender` is the one loop that awaits; `questions` are what it asks, `delivery` is what callers hold.
"""

from __future__ import annotations
