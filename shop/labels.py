"""Labels of the admin's fields in the reader's language.

Django makes a field's label of its name, in English. Looking that up when it is shown takes a line
where a `verbose_name` at each field takes as many lines as there are fields, and as many again of
migrations that change no table.
"""

from collections.abc import Iterable
from typing import Any

from django.db.models import Model
from django.utils.translation import gettext_lazy, gettext_noop

# What is looked up by a name and stands nowhere else; here makemessages finds it.
_LABELS = (
    *(gettext_noop("slug"), gettext_noop("name"), gettext_noop("description")),
    *(gettext_noop("price"), gettext_noop("picture"), gettext_noop("is listed")),
    *(gettext_noop("quantity"), gettext_noop("fence epoch")),
    *(gettext_noop("fence token"), gettext_noop("stale writes refused"), gettext_noop("delta")),
    *(gettext_noop("order number"), gettext_noop("quantity after"), gettext_noop("created at")),
    *(gettext_noop("limit per customer"), gettext_noop("opens at"), gettext_noop("closes at")),
    *(gettext_noop("number"), gettext_noop("customer"), gettext_noop("customer id")),
    *(gettext_noop("unit price"), gettext_noop("status"), gettext_noop("key")),
    *(gettext_noop("pay by"), gettext_noop("closed at"), gettext_noop("detail")),
    *(gettext_noop("reference"), gettext_noop("amount"), gettext_noop("answer by")),
    *(gettext_noop("backend"), gettext_noop("discipline"), gettext_noop("epoch")),
    *(gettext_noop("state"), gettext_noop("changed by"), gettext_noop("changed at")),
    *(gettext_noop("from backend"), gettext_noop("from discipline"), gettext_noop("to backend")),
    *(gettext_noop("to discipline"), gettext_noop("drained ms"), gettext_noop("digest")),
    *(gettext_noop("fingerprint"), gettext_noop("headers"), gettext_noop("lease until")),
    gettext_noop("sent at"),
)
# What Django's admin and celery-beat have marked, and have no Chinese for.
_OTHERS = (
    *(gettext_noop("Model name"), gettext_noop("Add link")),
    *(gettext_noop("Change or view list link"), gettext_noop("Task Name")),
    *(gettext_noop("Schedule"), gettext_noop("Arguments"), gettext_noop("Execution Options")),
    gettext_noop("Periodic Tasks Using This Schedule"),
    gettext_noop('Cron Months (1-12) Of The Year to Run. Use "*" for "all". (Example: "1,12")'),
    gettext_noop(
        'Cron Days Of The Week to Run. Use "*" for "all", Sunday is 0 or 7, Monday is 1. '
        '(Example: "0,5")'
    ),
)


def translate_labels(models: Iterable[type[Model]]) -> None:
    """Have what Django calls models and fields by their names translated when it is shown.

    Migrations go by the `verbose_name` that was given, which stays as it is.
    """
    for model in models:
        labelled: list[Any] = [model._meta, *model._meta.local_fields]
        for named in labelled:
            if isinstance(named.verbose_name, str):
                named.verbose_name = gettext_lazy(named.verbose_name)
