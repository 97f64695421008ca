"""The KV cache: what to keep of K and V (policies, bases) and how it lies in memory (layouts)."""
