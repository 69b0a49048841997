"""Tests of the Spark parts."""
