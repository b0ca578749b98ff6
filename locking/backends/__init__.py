"""The locks, a module each; `LOCKS` names them by dotted path."""
