"""A real SMTP server, which keeps what it accepts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from devservers.base import reserve_port
from shop.mail import service
from shop.models import User


class Inbox:
    """The handler of the server; `reply` and `at_recipient` decide about each message."""

    def __init__(self) -> None:
        self.received: list[EmailMessage] = []
        self.reply: Callable[[Any], str] = lambda server: "250 OK"
        self.at_recipient: Callable[[Any], str] = lambda server: "250 OK"
        self.port, self.mark = reserve_port()

    async def handle_RCPT(
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        reply = self.at_recipient(server)
        if reply.startswith("250"):
            envelope.rcpt_tos.append(address)
        return reply

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        reply = self.reply(server)
        if reply.startswith("250"):
            self.received.append(message_from_bytes(envelope.content, policy=policy.default))
        return reply

    @contextmanager
    def listening(self):
        server = Controller(self, hostname="127.0.0.1", port=self.port, ready_timeout=30)
        server.start()
        try:
            yield self
        finally:
            server.stop()


def parts(message: EmailMessage) -> tuple[str, str]:
    """Return the text and the HTML of a message."""
    text, html = message.get_body(("plain",)), message.get_body(("html",))
    return text.get_content(), html.get_content()


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
