"""Signing up, in and out; the profile."""

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth import login, update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm
from django.contrib.auth.views import LoginView, LogoutView, RedirectURLMixin
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.generic import FormView

from shop.models import User
from shop.platform import rate_limits
from shop.web.decorators import CustomerRequest, View, allow_methods
from shop.web.forms import ProfileForm, SignInForm, SignUpForm, StaffSignInForm, fold_name

METHODS = ["get", "head", "post"]


class SignIn(LoginView):
    """Throttled by address, and for wrong passwords by name, with and without the address."""

    template_name = "shop/sign_in.html"
    authentication_form = SignInForm
    http_method_names = METHODS

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Count before the slow hash, or many at once would all find the limit not reached."""
        rate_limits.count(settings.SIGN_IN_LIMIT, "sign-in", rate_limits.address_of(request))
        for limit in self._limits():
            rate_limits.count(*limit)
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """In; that was no wrong password."""
        for limit in self._limits():
            rate_limits.uncount(*limit)
        return super().form_valid(form)

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """The form again, with what was wrong."""
        return self.render_to_response(self.get_context_data(form=form), status=400)

    def _limits(self) -> list[tuple[str, ...]]:
        name = fold_name(self.request.POST.get("username", ""))[:150]
        return [
            (settings.SIGN_IN_FAILURE_LIMIT, "wrong", rate_limits.address_of(self.request), name),
            (settings.SIGN_IN_NAME_LIMIT, "wrong-anywhere", name),
        ]


@never_cache
def staff_sign_in(request: HttpRequest) -> HttpResponseBase:
    """The admin's page, behind the same limits."""
    shown = {"title": _("Log in"), "subtitle": None, "app_path": request.get_full_path()}
    view = SignIn.as_view(
        template_name="admin/login.html",
        authentication_form=StaffSignInForm,
        extra_context={**admin.site.each_context(request), **shown},
        next_page="admin:index",
    )
    return view(request)


@method_decorator([sensitive_post_parameters(), never_cache], name="dispatch")
class SignUp(RedirectURLMixin, FormView):  # type: ignore[type-arg]
    """A new customer, signed in at once."""

    template_name = "shop/sign_up.html"
    form_class = SignUpForm
    http_method_names = METHODS
    next_page = settings.LOGIN_REDIRECT_URL

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Count before the slow hash; who has asked for too many names hears of no other.

        Names are only checked here: counted, ten at once behind one address would shut out others.
        """
        rate_limits.count(settings.SIGN_IN_LIMIT, "sign-in", rate_limits.address_of(request))
        rate_limits.check(*self._limit())
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: SignUpForm) -> HttpResponse:
        """Create the account; somebody may have taken the name since it was checked."""
        try:
            with transaction.atomic():
                user = form.save()
        except IntegrityError:
            taken = ValidationError(_("A user with that username already exists."), code="unique")
            form.add_error("username", taken)
            return self.form_invalid(form)
        login(self.request, user)
        return HttpResponseRedirect(self.get_success_url())

    def form_invalid(self, form: SignUpForm) -> HttpResponse:
        """The form again, with what was wrong."""
        if form.has_error("username", "unique"):
            rate_limits.count(*self._limit())
        return self.render_to_response(self.get_context_data(form=form), status=400)

    def _limit(self) -> tuple[str, ...]:
        return settings.SIGN_UP_TAKEN_LIMIT, "taken", rate_limits.address_of(self.request)


def _own_page(view: View) -> View:
    private = sensitive_post_parameters()(never_cache(login_required(view)))
    return allow_methods(*(method.upper() for method in METHODS))(private)


@_own_page
def profile(request: CustomerRequest) -> HttpResponse:
    """The customer's name and address."""
    # A copy: what is wrong in the form must not show in the header.
    form = ProfileForm(request.POST or None, instance=User.objects.get(pk=request.user.pk))
    return _own_form(request, form, "shop/profile.html")


@_own_page
def password(request: CustomerRequest) -> HttpResponse:
    """A new password, for who knows the old one; other sessions end."""
    form = PasswordChangeForm(request.user, request.POST or None)
    return _own_form(request, form, "shop/password.html")


def _own_form(
    request: CustomerRequest, form: ProfileForm | PasswordChangeForm, page: str
) -> HttpResponse:
    if form.is_bound:
        rate_limits.count(settings.SIGN_IN_LIMIT, "own-form", str(request.user.pk))
        if form.is_valid():
            update_session_auth_hash(request, form.save())
            messages.success(request, _("Saved."))
            return redirect("profile")
    return render(request, page, {"form": form}, status=400 if form.is_bound else 200)


sign_out = allow_methods("POST")(LogoutView.as_view())
