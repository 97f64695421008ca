"""What a sparse KV cache costs in quality, measured with the engine that serves it."""
