"""The textbook locks with the flaw that each is known for: only the lab may name them."""
