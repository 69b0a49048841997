"""The benchmarks do what they say."""
