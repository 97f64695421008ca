"""Bodies of requests: what is accepted, and nothing else."""
