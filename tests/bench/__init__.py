"""Benchmarks: `python -m tests.bench --help`. Commands, not tests: they print figures and judge nothing."""
