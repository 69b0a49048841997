"""Tests of the hot loops: the pure and the compiled form are right, and do the same."""
