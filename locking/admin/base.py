"""Read-only pages, lists of large tables, and the page that asks staff to confirm an action."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

COUNTED = 10_000
"""Rows of a large table that its list counts and pages through."""
LOOKUPS = ("exact", "istartswith")


class _AtLeast(int):
    def __str__(self) -> str:
        return f"{int(self)}+"


class _CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Counts COUNTED rows at most: a full count reads the whole table."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        found: int = rows.order_by().values("pk")[: COUNTED + 1].count()
        return found if found <= COUNTED else _AtLeast(COUNTED)


class LargeTable(admin.ModelAdmin):  # type: ignore[type-arg]
    """A list that costs the same however many rows the table has.

    Each of `search_fields` needs an index, and so does what `ordering` and `list_filter` name. The
    related objects of the columns are in `shown_with`.
    """

    shown_with: tuple[str, ...] = ()

    ordering: ClassVar[tuple[str, ...]] = ("-pk",)
    list_per_page = 50
    list_select_related = ()  # False joins every nullable foreign key
    paginator = _CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    search_help_text = _("Finds equal values; if there are none, values that begin with the text.")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Read the related objects in a query of their own: a join is slower."""
        return super().get_queryset(request).prefetch_related(*self.shown_with)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search one field after the other: a condition on several of them uses no index."""
        text = search_term.strip()
        if not text:
            return queryset, False
        for lookup in LOOKUPS:
            for field in self.get_search_fields(request):
                with suppress(ValueError):  # a text where the field is a number
                    found = queryset.filter(**{f"{field}__{lookup}": text})
                    if found.order_by().exists():
                        return found, False
        return queryset.none(), False


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
