"""Faults that need one real broker. A test's name begins with its row of the fault matrix."""
