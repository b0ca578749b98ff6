"""The game "You are the scheduler": visitors step real buyers through the shop's own code."""
