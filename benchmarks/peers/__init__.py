"""Other libraries' implementations, to measure against."""
