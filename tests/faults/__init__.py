"""The fault proxy and what it is made of, before the embedded broker; see also tests/kafka."""
