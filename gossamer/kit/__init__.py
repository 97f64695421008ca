"""The kernel kit: a new op from templates, the checklist of an op, the pages about all of them.

Its parts work on a checkout: templates go into it, benchmarks and pages are read from it.
"""
