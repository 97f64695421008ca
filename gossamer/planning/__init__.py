"""Capacity planning: how many GPUs a rate of requests needs, from measured kernels."""
