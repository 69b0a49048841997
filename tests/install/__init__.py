"""Tests of what users install: the wheel and the sdist, in otherwise empty environments."""
