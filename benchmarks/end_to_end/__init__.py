"""Whole programs: the engine, a cache in transformers, quality, a server under load."""
