"""Tests of faults that need more than one node: leaders move, die, stall and come back."""
