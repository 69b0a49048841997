"""The tests: a package, so that tests/kafka is not taken for the client library of that name."""
