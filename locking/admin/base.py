"""Read-only pages, and the page that asks staff to confirm an action."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that only services write, because a change by hand would break the ledger."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False; rows cannot be added or deleted either."""
        return False

    has_add_permission = has_delete_permission = has_change_permission


def confirm(
    request: HttpRequest,
    of: admin.ModelAdmin[Any] | None,
    template: str,
    *,
    name: str,
    **context: Any,
) -> HttpResponse | None:
    """Return None if `name` was typed; else a page that asks for it and sends the form again.

    For actions that affect everyone at once. In the admin, `template` extends admin/confirm.html.
    """
    if (typed := request.POST.get("confirm")) == name:
        return None
    own = ("confirm", "csrfmiddlewaretoken")
    sent = [(key, value) for key, values in request.POST.lists() for value in values]
    if of:
        context |= {**of.admin_site.each_context(request), "opts": of.opts}
    repeated = [pair for pair in sent if pair[0] not in own]
    context |= {"name": name, "repeated": repeated, "typed": typed}
    return TemplateResponse(request, template, context, status=200 if typed is None else 400)
