"""Payments: the shop's side, and the simulated payment provider of the lab."""
