"""The only place with sockets: how a connection is made, and how frames go through it."""

from __future__ import annotations
