"""The Django app of the verification."""

from django.apps import AppConfig


class VerificationConfig(AppConfig):
    """Only the command `verify`."""

    name = "verification"
