"""Benchmarks: `python -m benchmarks.<op>` for one op, `python -m benchmarks.all` for every op."""
