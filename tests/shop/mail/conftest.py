"""The SMTP server of the settings."""

from collections.abc import Iterator

import pytest

from shop.mail import service
from shop.models import User
from tests.shop.mail.inbox import Inbox


@pytest.fixture
def smtp(settings, transactional_db, in_force, monkeypatch) -> Iterator[Inbox]:
    """An SMTP server that has not started."""
    monkeypatch.setattr(service, "SECONDS", 60.0)  # also on a busy machine
    inbox = Inbox()
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", inbox.port
    settings.SITE_URL = "https://shop.example"
    settings.EMAIL_TIMEOUT = 30
    with inbox.mark:
        yield inbox


@pytest.fixture
def inbox(smtp: Inbox):
    with smtp.listening():
        yield smtp


@pytest.fixture
def li(transactional_db) -> User:
    return User.objects.create_user("li", "li@example.com", "a-red-kettle-9")
