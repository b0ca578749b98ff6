"""Models of protocols, of which all states are searched; see docs/explanation/searches.md."""

from verification.protocols import queue, switch

PROTOCOLS = {one.PROTOCOL.name: one.PROTOCOL for one in (switch, queue)}
