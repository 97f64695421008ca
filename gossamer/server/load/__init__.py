"""A load generator: many clients of one server, and what they had to wait for."""
