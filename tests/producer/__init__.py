"""Tests of the whole producer against the embedded cluster.

The folder is a package, so that its files share `tools`.
"""
