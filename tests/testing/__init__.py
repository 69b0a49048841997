"""Tests of the tools that `aioidem.testing` offers."""
