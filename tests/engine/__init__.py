"""Tests of the engine: no event loop, no socket, time as an argument."""
