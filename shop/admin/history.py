"""The history of an object in the admin: in the language of its reader, and with the values."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import label_for_field
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.text import capfirst
from django.utils.timezone import localtime
from django.utils.translation import gettext as _

from shop.templatetags.shop import money


class HistoryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Tells what was changed into what, and translates what `entry` returned."""

    # Browsers then refuse what the server does: no number of these objects may be 0.
    formfield_overrides = {models.IntegerField: {"min_value": 1}}

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> Any:
        """Return an entry with the values before and after a change."""
        if add or not form.changed_data:
            return super().construct_change_message(request, form, formsets, add)
        values = [(form.initial.get(name), form.cleaned_data[name]) for name in form.changed_data]
        changes = [list(map(_shown, pair)) for pair in values]
        return json.dumps({"changes": dict(zip(form.changed_data, changes, strict=True))})

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        """Show the entries in the language of the page."""
        response = super().history_view(request, object_id, extra_context)
        if isinstance(response, TemplateResponse) and response.context_data:
            page = response.context_data["action_list"]
            page.object_list = [self._translated(one) for one in page.object_list]
        return response

    def _translated(self, one: LogEntry) -> LogEntry:
        with suppress(ValueError):  # a text, as of earlier versions
            found = json.loads(one.change_message)
            if isinstance(found, dict) and "text" in found:
                one.change_message = _(found["text"]).format(**found["values"])
            elif isinstance(found, dict):
                one.change_message = self._of_changes(found["changes"])
        return one

    def _of_changes(self, changes: Mapping[str, tuple[str, str]]) -> str:
        lines = []
        for name, values in changes.items():
            words = dict(self.model._meta.get_field(name).flatchoices)
            field = capfirst(str(label_for_field(name, self.model)))
            old, new = (str(words.get(value, value)) or "–" for value in values)
            lines.append(
                _("%(field)s: %(old)s → %(new)s") % {"field": field, "old": old, "new": new}
            )
        return _("; ").join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, datetime):
        return f"{localtime(value):%F %T}"
    return money(value) if isinstance(value, Decimal) else str(value)
