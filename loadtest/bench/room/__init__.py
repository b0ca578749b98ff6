"""`manage.py lab bench room`, and the proofs of `manage.py lab fairness`."""
