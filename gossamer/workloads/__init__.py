"""Workloads for engines: what the commands and the benchmarks run, measure and record."""
