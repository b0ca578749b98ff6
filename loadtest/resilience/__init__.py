"""Experiments on a whole shop, a web server and a worker: what it outlives, and for how long."""
