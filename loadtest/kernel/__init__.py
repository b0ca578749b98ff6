"""The kernel of all experiments: histories, holds and judges."""
