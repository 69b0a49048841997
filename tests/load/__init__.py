"""The load that `aioidem perf` and Spark generate, and its report."""
