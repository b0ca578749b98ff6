"""The page of the locks that are held now, one of which staff may break."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from locking import policy
from locking.admin.base import ReadOnlyAdmin, confirm
from locking.claims import Held
from locking.exceptions import LockError
from locking.handler import locks
from locking.models import HeldLock

logger = logging.getLogger("locking")

SHOWN = 500
"""Locks that one page lists."""


@admin.register(HeldLock)
class HeldLockAdmin(ReadOnlyAdmin):
    """The held locks of one backend.

    Breaking one needs the permission `locking.release_lock` or `locking.switch_lock`.
    """

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may break locks, whose holders then run beside the next ones."""
        allowed = ("locking.release_lock", "locking.switch_lock")
        return request.user.is_active and any(map(request.user.has_perm, allowed))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may see or break locks."""
        return self.has_release_permission(request) or super().has_view_permission(request, obj)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """List the held locks of the backend `?backend=`, by default the active one."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        alias, search = request.GET.get("backend", ""), request.GET.get("q", "")
        if alias not in locks:
            alias = policy.current().backend
        held, problem = list[Held](), ""
        try:
            held = [each for each in locks[alias].inspect() if search in each.name]
        except LockError as error:
            problem = str(error)
        held.sort(key=lambda each: each.name)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": capfirst(self.opts.verbose_name_plural),
            "alias": alias,
            "aliases": list(locks),
            "search": search,
            "rows": [_row(alias, each) for each in held[:SHOWN]],
            "count": len(held),
            "problem": problem,
            "lists_all": locks[alias].capabilities.lists_holders,
            "may_release": self.has_release_permission(request),
        }
        return TemplateResponse(request, "admin/locking/heldlock/change_list.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Ask for the name of the lock, then break it and record that in the history."""
        if not self.has_release_permission(request):
            raise PermissionDenied
        row = self.get_object(request, unquote(object_id))
        alias = row.digest.partition(" ")[0]
        try:
            held = next((each for each in locks[alias].inspect() if each.name == row.name), None)
            token = request.POST.get("token", "")
            if held is None:
                self._tell(request, messages.WARNING, _("Lock %s is not held any more."), row)
            elif request.POST and token != str(held.token):
                text = _("Lock %s now has another holder. Nothing was changed.")
                self._tell(request, messages.WARNING, text, row)
            elif asked := confirm(
                request,
                self,
                "admin/locking/heldlock/confirm.html",
                name=row.name,
                held=_row(alias, held),
            ):
                return asked
            elif locks[alias].break_lock(row.name):
                self._record(request, row, alias, held)
        except LockError as error:
            self.message_user(request, str(error), messages.ERROR)
        page = reverse(f"{self.admin_site.name}:locking_heldlock_changelist")
        return HttpResponseRedirect(f"{page}?{urlencode({'backend': alias})}")

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> HeldLock:
        """Return the lock, held or not: its history remains."""
        return HeldLock(pk=object_id, name=object_id.partition(" ")[2])

    def _record(self, request: HttpRequest, row: HeldLock, alias: str, held: Held) -> None:
        found = {"alias": alias, "owner": held.owner, "token": held.token}
        text = _("Broken in %(alias)s: held by %(owner)s, token %(token)s.") % found
        self.log_change(request, row, text)
        said = "lock name=%r in %s broken by %s; its owner was %s, its token %s"
        logger.warning(said, row.name, alias, request.user, held.owner, held.token)
        done = _("Lock %s was broken. Its former holder may still be running.")
        self._tell(request, messages.SUCCESS, done, row)

    def _tell(self, request: HttpRequest, level: int, text: Any, row: HeldLock) -> None:
        self.message_user(request, text % row.name, level)


def _row(alias: str, held: Held) -> dict[str, object]:
    """Return what the templates show of a held lock."""
    since = None
    if held.since is not None:
        since = datetime.fromtimestamp(held.since, UTC if settings.USE_TZ else None)
    return {"held": held, "since": since, "pk": quote(f"{alias} {held.name}")}
