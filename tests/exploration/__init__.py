"""Exhaustive exploration: the real engine against a model of brokers, every order of events.

`python -m tests.exploration` is the command; its spaces are in `spaces`.
"""
