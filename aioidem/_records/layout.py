"""The fixed part of a record batch, magic 2 (KIP-98): 61 bytes, big-endian.

======  ====  ==================================================================
offset  size  field
======  ====  ==================================================================
0       8     base offset                (outside the CRC: the broker sets it)
8       4     batch length, from offset 12 on
12      4     partition leader epoch     (outside the CRC: the broker sets it)
16      1     magic
17      4     CRC-32C of everything from offset 21 on
21      2     attributes
23      4     last offset delta
27      8     first (base) timestamp
35      8     maximum timestamp
43      8     producer id
51      2     producer epoch
53      4     base sequence
57      4     record count
======  ====  ==================================================================

Invariant: every offset that another module of `_records` uses is named here.

Rejected: the RecordBatch of the library kio (it has no codecs, and its native reader may abort the
process on hostile counts).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

MAGIC: Final = 2
BATCH_OVERHEAD: Final = 61

# The part of the header that the CRC does not cover, and the part that it covers.
LEAD: Final = Struct(">qiibI")
TAIL: Final = Struct(">hiqqqhii")
# Base offset and batch length, with which a batch can be cut out of a stream. The length counts the
# bytes after itself.
PREAMBLE: Final = Struct(">qi")
IDENTITY: Final = Struct(">qhi")
CRC: Final = Struct(">I")
LEADER_EPOCH: Final = Struct(">i")
BASE_OFFSET: Final = Struct(">q")
TIMESTAMP: Final = Struct(">q")

LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
MAX_TIMESTAMP_AT: Final = 35
IDENTITY_AT: Final = 43
COUNT_AT: Final = 57

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

NO_LEADER_EPOCH: Final = -1
