"""The native producer and its parts outside of the engine.

`native` is the API. `life` says whether a producer may be used, `intake` takes records in,
`topic_lookup` waits for metadata, and `sender` is the one loop that awaits what the engine decides.
`delivery` is what callers hold, `queued` what the producer settles.
"""

from __future__ import annotations
