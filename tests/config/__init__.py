"""The options: what is accepted, and how the rest is refused."""
