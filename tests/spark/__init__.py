"""Tests of aioidem on Spark."""
