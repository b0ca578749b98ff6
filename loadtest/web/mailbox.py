"""The lab's mail server and mailbox: messages stay in the database, for their recipients alone."""

import re
from collections.abc import Sequence
from smtplib import SMTPResponseException

from django.core.mail import EmailMessage, EmailMultiAlternatives
from django.core.mail.backends.base import BaseEmailBackend
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render

from loadtest.models import LabMail
from shop.platform.headers import allow
from shop.web.accounts import known_device
from shop.web.decorators import live_page

LISTED = 50


class Mailbox(BaseEmailBackend):
    """Delivers messages to the mailbox page."""

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """Keep the messages, and return their number."""
        for one in email_messages:
            assert isinstance(one, EmailMultiAlternatives)
            (pk,) = re.findall(r"-(\d+)@", one.extra_headers["Message-ID"])
            parts = {"subject": one.subject, "text": one.body, "html": one.alternatives[0][0]}
            try:
                LabMail.objects.create(message_id=pk, **parts)
            except DatabaseError as error:  # nothing was stored: it may be sent again
                raise SMTPResponseException(451, str(error)) from error
        return len(email_messages)


def _mine(request: HttpRequest) -> QuerySet[LabMail]:
    """Return the customer's messages, newest first.

    Without a sign-in, those to reset the password of the account that last used this browser.
    """
    newest = LabMail.objects.select_related("message__customer").order_by("-pk")
    if request.user.is_authenticated:
        return newest.filter(message__customer=request.user)
    resets = newest.filter(message__kind="reset")[:LISTED]
    known = [one.pk for one in resets if known_device(request, one.message.customer.username)]
    return newest.filter(pk__in=known)


@live_page
def mailbox(request: HttpRequest) -> HttpResponse:
    """List the visitor's own messages."""
    return render(request, "lab/mailbox.html", {"mails": _mine(request)[:LISTED]})


@live_page
def as_html(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the HTML part of one of the visitor's own messages."""
    # Not `pk`: it is a foreign key, for which Django passes on what the database cannot store.
    page = HttpResponse(get_object_or_404(_mine(request), message__id=pk).html)
    return allow(page, {"style-src": "'unsafe-inline'"}, payment="")  # as mail programs do
