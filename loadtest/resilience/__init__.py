"""Experiments on a whole shop: restarts, failed and slow stores, hours of mixed load."""
