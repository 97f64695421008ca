"""Which KV cache to use in a given memory: candidates, screened, probed, measured, compared."""
