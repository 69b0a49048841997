"""Tests of the embedded brokers."""
