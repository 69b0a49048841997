"""Tests of `aioidem.integrations`."""
