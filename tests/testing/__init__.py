"""The tests of what `aioidem.testing` offers."""
