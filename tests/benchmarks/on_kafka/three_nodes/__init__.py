"""Benchmarks that need a cluster of three nodes."""
