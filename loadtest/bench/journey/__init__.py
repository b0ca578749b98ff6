"""The cost of a buyer: every request of the shop, and what its crowds do to its processes."""
