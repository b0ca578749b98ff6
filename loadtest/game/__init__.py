"""The game "You are the scheduler": moves of real buyers through the shop's own code."""
