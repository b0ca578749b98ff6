"""Find the messages that are due, and send each at most once.

A conditional UPDATE claims a message before the SMTP server gets it; another one notes that the
server has accepted it. If the process dies between the two, the outcome is unknown, and the message
is not sent again. What the server has refused, or has never got, is tried again.
"""

import logging
import time
from datetime import timedelta
from smtplib import SMTPRecipientsRefused, SMTPResponseException
from urllib.parse import urlsplit

from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.core.mail import EmailMultiAlternatives, get_connection
from django.core.mail.backends.base import BaseEmailBackend
from django.db.models import Exists, F, OuterRef, QuerySet
from django.template.loader import render_to_string
from django.utils import timezone, translation

from locking.failpoints import reach
from shop.errors import ShopError
from shop.mail.kinds import WINDOW, Kind, kinds
from shop.mail.models import Message, Reminder
from shop.models import Sale, User

logger = logging.getLogger("shop")

State = Message.State
BATCH = 500
"""Messages that may wait before more are found, so that no urgent one is far behind."""
SECONDS = 4.0
"""Seconds for which one run sends; the next run starts after five."""
ATTEMPTS, BACKOFF = 6, timedelta(seconds=30)
"""Refusals of a message before it fails; the pause doubles with each, up to eight minutes."""
RESET_SECONDS = 300
"""Seconds in which a customer gets one message to choose a new password."""
KEPT_FOR = timedelta(days=30)


def can_mail() -> bool:
    """Return True if the shop can send email."""
    return not settings.EMAIL_BACKEND.endswith(".dummy.EmailBackend")


def request_reset(*, customer: User) -> None:
    """Write the message with which a customer chooses a new password."""
    reset = Message(kind="reset", about=int(time.time()) // RESET_SECONDS, customer=customer)
    Message.objects.bulk_create([reset], ignore_conflicts=True)


def remind(*, sale: Sale, customer: User) -> None:
    """Write to the customer when the sale is about to open, and at their next turn to buy."""
    _earlier_turns(sale, customer).delete()
    Reminder.objects.get_or_create(sale=sale, customer=customer)


def remind_again(*, sale: Sale) -> None:
    """Write again to those who want a reminder of the sale: it opens at another time, or now."""
    Message.objects.filter(kind="opening", about=sale.pk).delete()
    if sale.opens_at <= timezone.now():
        asked = Reminder.objects.filter(sale=sale).values_list("customer", flat=True)
        new = [Message(kind="opening", about=sale.pk, customer_id=customer) for customer in asked]
        Message.objects.bulk_create(new, BATCH, ignore_conflicts=True)


def has_reminder(*, sale: Sale, customer: User) -> bool:
    """Return True if the customer has a reminder of the sale that an earlier turn did not use."""
    has_asked = Reminder.objects.filter(sale=sale, customer=customer).exists()
    return has_asked and not _earlier_turns(sale, customer).exists()


def _earlier_turns(sale: Sale, customer: User) -> QuerySet[Message]:
    turns = Message.objects.filter(kind="turn", about=sale.pk, customer=customer)
    return turns.exclude(state__in=(State.WAITING, State.SENDING))


def delete_old_mail() -> None:
    """Delete messages after a month, and the reminders of sales that have ended."""
    Message.objects.filter(created_at__lt=timezone.now() - KEPT_FOR).delete()
    Reminder.objects.filter(sale__closes_at__lt=timezone.now()).delete()


def send_mail() -> int:
    """Find what is due, send what waits, and return the number of messages sent."""
    if not can_mail():
        return 0
    _find_due(BATCH - _waiting().count())
    batch = list(_waiting().select_related("customer").order_by("due_at")[:BATCH])
    stop, sent = time.monotonic() + SECONDS, 0
    try:
        if batch:
            with get_connection() as connection:
                for message in batch:
                    sent += time.monotonic() < stop and _send(message, connection)
    except OSError as error:
        logger.warning("Sending email failed, %d messages wait: %r", _waiting().count(), error)
    return sent


def _waiting() -> QuerySet[Message]:
    due = Message.objects.filter(state=State.WAITING, due_at__lte=timezone.now())
    return due.filter(kind__in=list(kinds))  # an application may have been removed


def _find_due(most: int) -> None:
    """Write up to about `most` messages that are due and have no row yet."""
    now = timezone.now()
    for name, kind in kinds.items():
        key = {"about": kind.about, "customer": kind.customer}
        same = {own: OuterRef(its) for own, its in key.items()}
        known = Exists(Message.objects.filter(kind=name, **same))
        rows = (kind.due or kind.rows)(now, now - WINDOW).order_by().values_list(*key.values())
        pairs = rows.filter(~known).exclude(**{f"{kind.customer}__email": ""})[: max(0, most)]
        due = [Message(kind=name, about=about, customer_id=who) for about, who in pairs]
        Message.objects.bulk_create(due, ignore_conflicts=True)
        most -= len(due)


def claim(message: Message) -> bool:
    """Return True to the one process that may send the message as it has read it."""
    read = {"state": State.WAITING, "attempts": message.attempts}
    waiting = Message.objects.filter(pk=message.pk, **read)
    return bool(waiting.update(state=State.SENDING, attempts=F("attempts") + 1))


def _send(message: Message, connection: BaseEmailBackend) -> bool:
    row = Message.objects.filter(pk=message.pk)
    try:
        email = compose(message)
    except SoftTimeLimitExceeded:  # of the task, not of the message
        raise
    except Exception as error:  # one message must not delay the others
        is_bug = not isinstance(error, ShopError)
        logger.warning("Message %s waits: %r", message, error, exc_info=is_bug)
        row.update(due_at=timezone.now() + BACKOFF)
        return False
    if email is None:
        row.filter(state=State.WAITING).delete()
        return False
    reach("mail.claim")
    if not claim(message):
        return False
    try:
        connection.send_messages([email])
    except (SMTPResponseException, SMTPRecipientsRefused, ValueError) as error:
        logger.warning("Message %s was refused: %r", message, error)
        is_last = message.attempts + 1 >= ATTEMPTS or isinstance(error, ValueError)
        due_at = timezone.now() + BACKOFF * 2**message.attempts
        row.update(state=State.FAILED if is_last else State.WAITING, due_at=due_at)
        connection.close()  # the server may have closed it, which the next message would suffer
        connection.open()
        return False
    except OSError:
        logger.error("Message %s may have been sent: the server's reply is missing", message)
        raise
    reach("mail.accepted")
    row.update(state=State.SENT)
    return True


def compose(message: Message) -> EmailMultiAlternatives | None:
    """Return the message in the customer's language, or None if its text is no longer true."""
    kind: Kind = kinds[message.kind]
    customer: User = message.customer
    key = {kind.about: message.about, kind.customer: customer}
    rows = kind.rows(timezone.now(), message.created_at - WINDOW)
    row = rows.filter(**key).first()
    path = kind.path(row) if row and customer.email else None
    if path is None:
        return None
    with translation.override(customer.language or settings.LANGUAGE_CODE):
        text = render_to_string(f"mail/{message.kind}.txt", {"row": row, "customer": customer})
        subject, *paragraphs, link = filter(None, map(str.strip, text.split("\n\n")))
        url = settings.SITE_URL + path
        parts = {"subject": subject, "paragraphs": paragraphs, "link": link, "url": url}
        html = render_to_string("mail/message.html", {**parts, "shop_name": settings.SHOP_NAME})
    name = f"<{message.kind}-{message.pk}@{urlsplit(settings.SITE_URL).hostname}>"
    email = EmailMultiAlternatives(
        subject,
        "\n\n".join([*paragraphs, f"{link}\n{url}"]),
        to=[customer.email],
        headers={"Message-ID": name, "Auto-Submitted": "auto-generated"},
    )
    email.attach_alternative(html, "text/html")
    return email
