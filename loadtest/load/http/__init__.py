"""Load on a running shop over HTTP."""
