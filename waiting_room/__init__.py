"""A waiting room in front of a sale: fair positions, and admission at a limited rate.

The shop does not import this package. It is installed by the setting WAITING_ROOM.
"""
