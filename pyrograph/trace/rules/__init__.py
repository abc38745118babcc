"""Dependence rules of ATen operations, one family a file; ``operations.py`` is their table."""
