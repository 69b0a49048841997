"""Seeded schedules of faults against the engine on a virtual clock. A package: its files share."""
