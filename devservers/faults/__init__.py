"""Fault injectors for real processes and servers."""
