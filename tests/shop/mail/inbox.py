"""A real SMTP server for tests, which keeps what it accepts."""

from collections.abc import Callable
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller

from devservers.base import reserve_port


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
