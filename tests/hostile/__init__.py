"""Hostile input: what a broker, or whoever poses as one, can send us."""
