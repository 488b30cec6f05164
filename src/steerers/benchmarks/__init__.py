"""The benchmarks: one file a benchmark, one protocol and one report for all."""
