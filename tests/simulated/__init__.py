"""Seeded schedules of faults against the engine, on a virtual clock.

The folder is a package, so that its files share the simulation.
"""
