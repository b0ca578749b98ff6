"""Decides whether recorded histories are linearizable."""
