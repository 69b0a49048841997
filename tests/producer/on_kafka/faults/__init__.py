"""Tests of faults that need one real broker."""
