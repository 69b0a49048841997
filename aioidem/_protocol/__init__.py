"""The wire protocol without sockets: schemas, framing, version choice, and Produce v14.

kio describes every message; `codec` reads them safely. Nothing here awaits, opens or measures
anything.
"""

from __future__ import annotations
