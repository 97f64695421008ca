"""Figures of what was measured, next to what others published: `gossamer figures`."""
