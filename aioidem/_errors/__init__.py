"""The classes of `aioidem.errors`, in three files.

`codes` has the errors that brokers answer with, `local` all errors that arise on this side, and
`aiokafka_names` classes that only aiokafka raises.
"""

from __future__ import annotations
