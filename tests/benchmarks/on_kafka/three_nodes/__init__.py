"""Tests of benchmarks that need a cluster of three nodes."""
