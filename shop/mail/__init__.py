"""Email to customers: which messages are due, their texts, and sending each at most once."""
