"""Mutants made by machine: which small changes of the engine the tests notice.

`operators` makes the mutants of a source file, `applying` puts one in place in memory, `reach`
knows which tests execute which line, `judges` run them with a mutant in place, `worker` is a
process that does so for many mutants, and `__main__` is the command. `triage.toml` has the
survivors.

No file is ever edited: a mutant exists in the memory of one forked process.

Rejected: mutmut 3 (it mutates functions only, so no row of a transition table, and runs pytest
only, so no seed and no exploration) and cosmic-ray (it edits the files, and starts a command for
each mutant, which takes seconds before the first test runs).
"""
