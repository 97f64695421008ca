"""Triton kernels, one op per file. Import a module only where Triton is installed."""
