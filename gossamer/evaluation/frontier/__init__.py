"""Which KV cache to use in a given memory: `gossamer frontier`.

In the order of a search: candidates, screening, measure, prediction, search, outcome, report.
"""
