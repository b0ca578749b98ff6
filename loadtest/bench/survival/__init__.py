"""Faults of holders, stores and replies, and which Python lock survives them."""
