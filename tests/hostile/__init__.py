"""Tests with hostile input from brokers and those who impersonate them."""
