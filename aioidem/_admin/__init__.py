"""Requests to brokers over connections other than the producer's."""

from __future__ import annotations
