"""The whole producer against the embedded cluster. A package, so that its files share `tools`."""
