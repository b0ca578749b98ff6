"""Tests of lock backends, and locks in memory for the tests of a project.

`contract` is the suite that every backend passes, `memory` a backend without a server whose clock
a test may advance, and `fixtures` a pytest plugin. Only `memory` works without pytest, which the
extra `testing` installs.
"""
