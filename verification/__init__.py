"""Searches for broken promises, for maintainers and sceptics. Nothing else needs this package.

torture: random workloads under random faults. interleavings: every order of the operations of small
programs. protocols: every state of a model. histories: is a recorded history linearizable?
soak: hours of mixed load on a whole shop.
"""
