"""Forms and request parsing. Malformed input is refused, never guessed."""

import json
import re
import unicodedata
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms
from django.contrib.auth.forms import (
    AuthenticationForm,
    PasswordChangeForm,
    PasswordResetForm,
    SetPasswordForm,
    UserCreationForm,
)
from django.core.exceptions import ValidationError
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponseRedirect
from django.utils.text import format_lazy
from django.utils.translation import get_language
from django.utils.translation import gettext_lazy as _

from locking import admin, locks
from locking.idempotency import is_key
from locking.idempotency.views import FIELD, FORM_TYPES
from shop.errors import BadInput, UnsupportedType
from shop.mail.service import request_reset
from shop.models import Sale, User
from shop.sales.guards import guard_title
from shop.sales.purchase_request import PurchaseRequest

TOKEN = "purchase_token"  # noqa: S105
"""The form field with the token of `shop.purchase.tokens`."""
MAIL_HELP = _("For updates on your orders, and to reset your password.")
MAX_RESETS = 10
"""Accounts to which one request sends a link."""
FIELDS = frozenset({"quantity", "attempt", FIELD})


def fold_name(name: str) -> str:
    """Return one text for all spellings of a name that a form or the database treats as equal."""
    return unicodedata.normalize("NFKC", name).strip().casefold()


class SeeOther(HttpResponseRedirect):
    """The response to a form: go to that page with GET."""

    status_code = 303


class SignInForm(AuthenticationForm):
    """Sign-in with the exact name.

    A database collation may find "amy" for "ámy"; then each accent would get its own rate limit.
    """

    def confirm_login_allowed(self, user: User) -> None:
        """Compare the names after the hash, so that every refusal takes as long."""
        super().confirm_login_allowed(user)
        if fold_name(user.get_username()) != fold_name(self.cleaned_data["username"]):
            raise self.get_invalid_login_error()


class SignUpForm(UserCreationForm):  # type: ignore[type-arg]
    """Sign-up form; without an email address, a customer gets no messages."""

    class Meta:
        model = User
        fields: ClassVar = ["username", "email"]
        help_texts: ClassVar = {"email": MAIL_HELP}


class ResetForm(PasswordResetForm):
    """Asks for the address to which the link to a new password is sent."""

    def save(self, **options: Any) -> None:  # type: ignore[override]
        """Write a message to each account with the address."""
        address = self.cleaned_data["email"]
        found = User.objects.filter(email__in={address, address.lower()}, is_active=True)
        # An exact match, which every database finds by the index. Anyone can enter the address in
        # any number of accounts: the oldest ones may be its owner's.
        for user in found.order_by("pk")[:MAX_RESETS]:
            if user.has_usable_password():
                request_reset(customer=user)


class NewPasswordForm(SetPasswordForm):  # type: ignore[type-arg]
    """Sets a new password."""

    def save(self, commit: bool = True) -> User:
        """Save the password alone: meanwhile staff may have closed the account, for example."""
        user: User = super().save(commit=False)
        user.save(update_fields=["password"])
        return user


class ChangePasswordForm(NewPasswordForm, PasswordChangeForm):
    """Sets a new password, given the old one."""


class ProfileForm(ModelForm):  # type: ignore[type-arg]
    """A customer's name and email address, which the password protects: it can replace it."""

    old_password = forms.CharField(
        label=_("Old password"),
        help_text=_("Only to change your email address."),
        required=False,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "current-password"}),
    )

    class Meta:
        model = User
        fields: ClassVar = ["first_name", "last_name", "email"]
        labels: ClassVar = {"first_name": _("First name"), "last_name": _("Last name")}
        help_texts: ClassVar = {"email": MAIL_HELP}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if (get_language() or "").startswith("zh"):
            self.order_fields(["last_name", "first_name"])

    def clean(self) -> dict[str, Any]:
        """Refuse another address without the password."""
        sent = super().clean() or self.cleaned_data
        password = sent.get("old_password", "")
        if "email" in self.changed_data and not self.instance.check_password(password):
            why = PasswordChangeForm.error_messages["password_incorrect"]
            self.add_error("old_password", ValidationError(why, code="password_incorrect"))
        return sent

    def save(self, commit: bool = True) -> User:
        """Save these fields alone: meanwhile staff may have closed the account, for example."""
        user: User = self.instance
        user.save(update_fields=self.Meta.fields)
        return user


class SwitchForm(admin.SwitchForm):
    """The form of the admin; here the step is a button."""

    backend = forms.ChoiceField(
        label=_("Switch to"), choices=lambda: [(alias, guard_title(alias)) for alias in locks]
    )
    step = None  # type: ignore[assignment]


def read_purchase(
    request: HttpRequest, *, customer_id: int, sale: Sale, is_first: bool = False
) -> PurchaseRequest:
    """Return the purchase that a form or a JSON body asks for.

    Raise BadInput or UnsupportedType. Other fields are ignored.
    """
    sent = _read_fields(request)
    quantity = sent.get("quantity", "")
    if request.content_type in FORM_TYPES:
        text = str(quantity)  # int() also reads "1_0", "٣" and five thousand digits
        quantity = int(text) if re.fullmatch(r"[1-9][0-9]{0,4}", text) else None
    if type(quantity) is not int:
        raise BadInput(_("The quantity is not a whole number."))
    if quantity < 1:
        raise BadInput(_("The quantity must be at least 1."))
    key = read_key(sent.get(FIELD, ""), request.META.get("HTTP_IDEMPOTENCY_KEY"))
    attempt = str(sent.get("attempt", ""))
    # An earlier attempt may have been the customer's first order, so a later one looks for it.
    is_first = is_first and attempt in ("", "1")
    return PurchaseRequest(customer_id, sale, quantity, key, is_first, attempt == "1")


def key_of(request: HttpRequest) -> str:
    """Return the idempotency key of a change of an order. Raise the errors of `read_purchase`.

    A request without a key gets a new one: the order's status already prevents a second change, a
    key only makes a repeated request return the first response.
    """
    has_content = request.content_type in FORM_TYPES or request.body
    sent = _read_fields(request) if has_content else {}
    in_header = request.META.get("HTTP_IDEMPOTENCY_KEY")
    if FIELD not in sent and in_header is None:
        return str(uuid.uuid4())
    return read_key(sent.get(FIELD, ""), in_header)


def key_in_form(request: HttpRequest) -> str:
    """Return the idempotency key of a form or of its header. Raise BadInput if it is invalid."""
    return read_key(_only(request, FIELD), request.META.get("HTTP_IDEMPOTENCY_KEY"))


def _read_fields(request: HttpRequest) -> Mapping[str, object]:
    """Return the fields of a form or a JSON body. Raise BadInput or UnsupportedType."""
    if request.content_type in FORM_TYPES:
        return {name: _only(request, name) for name in request.POST if name in FIELDS}
    if request.content_type == "application/json":
        return _read_json(request.body)
    raise UnsupportedType(_("Send a form or JSON."))


def _only(request: HttpRequest, name: str) -> str:
    values = request.POST.getlist(name)
    if len(values) > 1:
        raise BadInput(format_lazy(_("“{name}” was sent more than once."), name=name))
    return str(values[0]) if values else ""


def read_key(in_body: object, in_header: str | None = None) -> str:
    """Return the idempotency key of the body or the header. Raise BadInput if it is invalid."""
    if not isinstance(in_body, str):
        raise BadInput(_("The idempotency key must be a string."))
    if in_header and in_body and in_header != in_body:
        raise BadInput(_("The idempotency keys of header and body differ."))
    key = in_header or in_body
    if not key.strip():
        raise BadInput(_("The idempotency key is missing."))
    if not is_key(key):
        raise BadInput(_("The idempotency key is too long or has control characters."))
    return key


def _read_json(body: bytes) -> dict[str, Any]:
    try:
        sent = json.loads(body.decode(), object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError):  # includes UnicodeDecodeError and too long numbers
        raise BadInput(_("The body is not JSON.")) from None
    if not isinstance(sent, dict):
        raise BadInput(_("The body is not a JSON object."))
    return sent


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate name")
    return found
