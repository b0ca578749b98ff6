"""Sign-up, sign-in, sign-out, the profile, and what customers get by email."""

import secrets
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login, update_session_auth_hash, user_logged_in, views
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.messages.views import SuccessMessageMixin
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils.decorators import method_decorator
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST
from django.views.generic import FormView
from django.views.i18n import set_language as set_language_cookie

from shop.catalogue.page_cache import get_cached_sale
from shop.errors import (
    STORE_ERRORS,
    NotFound,
    Overloaded,
    ProofRequired,
    ServiceUnavailable,
    answer,
)
from shop.mail import service as mail
from shop.models import User
from shop.platform import proof_of_work, rate_limits
from shop.web import forms
from shop.web.decorators import CustomerRequest, View, customer_form

DEVICE = "device"
"""The cookie of a browser in which an account has signed in; signed together with its name."""
DEVICE_SECONDS = 365 * 24 * 3600
REMIND_LIMIT = "20/day"
"""Reminders that an account may ask for, and all accounts with an address: anyone can enter it."""
SIGN_UP = "sign-up"
"""Purpose of the proof of work."""


def _remember_device(response: HttpResponse, name: str) -> HttpResponse:
    response.set_signed_cookie(
        DEVICE,
        secrets.token_hex(8),
        salt=forms.fold_name(name)[:150],
        max_age=DEVICE_SECONDS,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )
    return response


def known_device(request: HttpRequest, name: str) -> str:
    """Return the browser's id; empty if its last sign-in was not that of the account."""
    salt = forms.fold_name(name)[:150]
    return str(request.get_signed_cookie(DEVICE, "", salt=salt, max_age=DEVICE_SECONDS))


class _FormPage(FormView):  # type: ignore[type-arg]
    """A page that shows its form again with the errors and status 400."""

    http_method_names = ["get", "head", "post"]

    def form_invalid(self, form: Any) -> HttpResponse:
        return self.render_to_response(self.get_context_data(form=form), status=400)


class SignIn(_FormPage, views.LoginView):
    """Limited per address; for wrong passwords also per name, with and without the address.

    A known device has limits of its own for its name: strangers cannot lock its customer out.
    """

    template_name = "shop/sign_in.html"
    authentication_form = forms.SignInForm

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Count before the slow hash: otherwise many parallel requests would all pass the check."""
        rate_limits.count(settings.SIGN_IN_LIMIT, "sign-in", rate_limits.address_of(request))
        self._count_failure()
        try:
            return super().post(request, *args, **kwargs)
        except Overloaded:
            self._count_failure(cost=-1)
            raise

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        """Offer the demo's accounts while their password is the public one."""
        is_public = settings.SEED_PASSWORD == settings.DEMO_PASSWORD
        is_demo = is_public and apps.is_installed("loadtest")
        return super().get_context_data(
            **context, demo_password=settings.DEMO_PASSWORD if is_demo else ""
        )

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Sign in, and take back the count of wrong passwords."""
        self._count_failure(cost=-1)
        return _remember_device(super().form_valid(form), form.get_user().get_username())

    def _count_failure(self, cost: int = 1) -> None:
        name = forms.fold_name(self.request.POST.get("username", ""))[:150]
        client = name, known_device(self.request, name)
        address = rate_limits.address_of(self.request)
        rate_limits.count(settings.SIGN_IN_FAILURE_LIMIT, "wrong", address, *client, cost=cost)
        rate_limits.count(settings.SIGN_IN_NAME_LIMIT, "wrong-anywhere", *client, cost=cost)


@method_decorator([sensitive_post_parameters(), never_cache], name="dispatch")
class SignUp(views.RedirectURLMixin, _FormPage):
    """Create an account and sign its customer in."""

    template_name = "shop/sign_up.html"
    form_class = forms.SignUpForm
    next_page = settings.LOGIN_REDIRECT_URL

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Count before the slow hash; refuse an address that has asked for too many taken names.

        Taken names are counted in `form_invalid`: if every sign-up counted, ten customers behind
        one address would use up the limit.
        """
        rate_limits.count(settings.SIGN_IN_LIMIT, "sign-in", rate_limits.address_of(request))
        rate_limits.count(*self._limit(), cost=0)
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: forms.SignUpForm) -> HttpResponse:
        """Create the account; another sign-up may have taken the name since it was checked."""
        address = rate_limits.address_of(self.request)
        try:
            proof_of_work.check(self.request.POST, purpose=SIGN_UP, address=address)
        except ProofRequired as error:
            context = self.get_context_data(form=form, proof=error.more)
            return answer(self.request, error, page=self.template_name, context=context)
        try:
            with transaction.atomic():
                user = form.save()
        except IntegrityError:
            taken = ValidationError(_("A user with that username already exists."), code="unique")
            form.add_error("username", taken)
            return self.form_invalid(form)
        login(self.request, user)
        response = HttpResponseRedirect(self.get_success_url())
        return _remember_device(response, user.get_username())

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        """Add the challenge of the form; after an error, the one that was sent with it."""
        sent = self.request.POST.get(proof_of_work.CHALLENGE, "")
        added = {"proof": proof_of_work.offer(SIGN_UP, sent=sent), "next": self.get_redirect_url()}
        return super().get_context_data(**{**added, **context})

    def form_invalid(self, form: forms.SignUpForm) -> HttpResponse:
        """Show the form again with its errors."""
        if form.has_error("username", "unique"):
            rate_limits.count(*self._limit())
        return super().form_invalid(form)

    def _limit(self) -> tuple[str, ...]:
        return settings.SIGN_UP_TAKEN_LIMIT, "taken", rate_limits.address_of(self.request)


class PasswordReset(_FormPage, views.PasswordResetView):
    """Send a link to a new password; the same answer for known and unknown addresses."""

    template_name = "shop/password_reset.html"
    form_class = forms.ResetForm
    success_url = reverse_lazy("password-reset-done")

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Count every request. Raise NotFound if the shop sends no email."""
        if not mail.can_mail():
            raise NotFound
        rate_limits.count(settings.SIGN_IN_FAILURE_LIMIT, "reset", rate_limits.address_of(request))
        return super().post(request, *args, **kwargs)


reset_sent = never_cache(
    views.PasswordResetDoneView.as_view(template_name=PasswordReset.template_name)
)


class NewPassword(_FormPage, SuccessMessageMixin, views.PasswordResetConfirmView):  # type: ignore[type-arg]
    """Set a new password, given the link; all sessions and purchase tokens of the account end."""

    template_name = "shop/password_new.html"
    form_class = forms.NewPasswordForm
    success_url = reverse_lazy("login")
    success_message = gettext_lazy("Your new password is set. Sign in with it.")

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Count before the slow hash."""
        rate_limits.count(settings.SIGN_IN_LIMIT, "sign-in", rate_limits.address_of(request))
        return super().post(request, *args, **kwargs)


@receiver(user_logged_in)
def _keep_language(user: User, **signal: Any) -> None:
    _set_language(user, get_language() or "")


def _set_language(user: User, language: str) -> None:
    if user.language != language:
        User.objects.filter(pk=user.pk).update(language=language)


def set_language(request: HttpRequest) -> HttpResponse:
    """Choose the language of the pages, and of a signed-in customer's email."""
    response = set_language_cookie(request)
    chosen = response.cookies.get(settings.LANGUAGE_COOKIE_NAME)
    if chosen and isinstance(request.user, User):
        _set_language(request.user, chosen.value)
    return response


@customer_form
def remind(request: CustomerRequest, slug: str, page: str = "sale") -> HttpResponse:
    """Send the customer messages about a sale: before it opens, and at their turn to buy."""
    for one in filter(None, (str(request.user.pk), request.user.email)):
        rate_limits.count(REMIND_LIMIT, "remind", one)
    mail.remind(sale=get_cached_sale(slug=slug).sale, customer=request.user)
    messages.success(request, _("We'll email you."))
    return redirect(page, slug)


def _account_page(view: View) -> View:
    private = sensitive_post_parameters()(never_cache(login_required(view)))
    return require_http_methods(["GET", "HEAD", "POST"])(private)


@_account_page
def profile(request: CustomerRequest) -> HttpResponse:
    """Show and change the customer's name and email address."""
    # A copy, so that invalid form data does not appear in the page's header.
    form = forms.ProfileForm(request.POST or None, instance=User.objects.get(pk=request.user.pk))
    return _account_form(request, form, "shop/profile.html")


@_account_page
def password(request: CustomerRequest) -> HttpResponse:
    """Change the password, given the old one; the customer's other sessions end."""
    form = forms.ChangePasswordForm(request.user, request.POST or None)
    return _account_form(request, form, "shop/password.html")


def _account_form(
    request: CustomerRequest, form: forms.ProfileForm | forms.ChangePasswordForm, page: str
) -> HttpResponse:
    if form.is_bound:
        limit = settings.SIGN_IN_FAILURE_LIMIT, "account-form", str(request.user.pk)
        rate_limits.count(*limit)
        try:
            user = form.save() if form.is_valid() else None
        except Overloaded:
            rate_limits.count(*limit, cost=-1)
            raise
        if user:
            if isinstance(form, forms.ChangePasswordForm):
                update_session_auth_hash(request, user)
            messages.success(request, _("Saved."))
            return redirect("profile")
    return render(request, page, {"form": form}, status=400 if form.is_bound else 200)


@require_POST
def sign_out(request: HttpRequest) -> HttpResponseBase:
    """End the session, or say that it may not have ended."""
    try:
        return views.LogoutView.as_view()(request)
    except STORE_ERRORS as error:
        advice = _("You may still be signed in. Please sign out again in a moment.")
        raise ServiceUnavailable(advice) from error
