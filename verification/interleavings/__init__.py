"""All interleavings of small programs: every order of their store operations, on real servers."""
