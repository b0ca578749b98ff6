"""The lock benchmark."""
