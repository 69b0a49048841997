"""Tests of the flight recorder: what it keeps, its files, and what a replay does with them."""
