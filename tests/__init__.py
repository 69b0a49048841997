"""Tests of aioidem: a package, so that `tests.kafka` does not hide the client library `kafka`."""
