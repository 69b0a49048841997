"""The classes of `aioidem.errors`, in three files.

`codes` has the errors for the error codes of brokers' answers, `local` the errors without such a
code, which the client itself detects, and `aiokafka_names` classes that only aiokafka raises.
"""

from __future__ import annotations
