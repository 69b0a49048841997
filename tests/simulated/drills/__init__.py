"""Drills: parts of the engine that are driven by themselves, each against a model of its own.

A run brings a part into few of its states. A drill brings it into any: it does what callers and
brokers may do, in any order, and compares after each step what the part tells with what follows
from all that has happened. The model is a second derivation, simple and slow, written from what the
part promises. `drilled` has the list of all drills.
"""
