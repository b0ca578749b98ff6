"""Pages of one sale in the admin: its report, the export of its orders and its packing list."""

import logging
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.functional import Promise, SimpleLazyObject
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext
from django.views.decorators.http import require_safe

from inventory.exceptions import OutcomeUnknown
from shop.admin.history import HistoryAdmin
from shop.administration.history import entry
from shop.administration.order_export import export_orders
from shop.administration.sale_report import HEIGHT, WIDTH, report_of
from shop.errors import BadInput, InvalidTransition, Overloaded, ServiceUnavailable, ShopError
from shop.models import Order, Sale
from shop.orders.addresses import mark_shipped, to_pack
from shop.purchase.admission import gates

logger = logging.getLogger("shop")

PER_LIST = 100
"""Orders on a packing list: those marked as shipped make room for the next."""
COUNTED = 1000
"""Orders that a packing list counts."""
LATEST = 5
"""Orders on the page of a sale."""
PERSONAL = ("shop.view_order", "shop.view_deliveryaddress")
"""Permissions to see the customers of a sale."""
SHIP = "shop.change_deliveryaddress"
PRINTED = re.compile("([0-9]{1,18})-([0-9]{1,9})")
"""An order's number in the database and the revision of its address."""


class PageActions(HistoryAdmin):
    """Actions that the page of an object offers as well; its form names the object in `back`."""

    def name_of(self, row: Any) -> str:
        """Return how messages name an object."""
        return str(row)

    def each(
        self,
        request: HttpRequest,
        rows: Iterable[Any],
        step: Callable[..., bool | None],
        log_entry: str | Callable[[Any], str],
        done: str | Promise,
        refusal: str | Promise = "",
    ) -> HttpResponse | None:
        """Take a step with each object and report it; False means that the step was refused."""
        for row in rows:
            name, problem = self.name_of(row), ""
            try:
                if step(**{str(self.opts.model_name): row}) is False:
                    problem = refusal % name
            except (OutcomeUnknown, ServiceUnavailable):
                text = _("%s: a store did not reply. Check the result before you retry.")
                problem = text % name
            except Overloaded:
                text = _(
                    "%s: its lock or its row was not free in time. Nothing was changed; try again."
                )
                problem = text % name
            except ShopError as error:
                is_refusal = refusal and isinstance(error, InvalidTransition)
                why = {"label": name, "error": refusal if is_refusal else error.title}
                problem = _("%(label)s: %(error)s") % why
            if problem:
                self.message_user(request, problem, messages.ERROR)
            else:
                self.message_user(request, done % name, messages.SUCCESS)
                text = log_entry(row) if callable(log_entry) else log_entry
                try:
                    self.log_change(request, row, text)
                except Error as error:  # the step is done: staff must not repeat it
                    logger.warning("The history of %s lacks an entry: %r", name, error)
        return None

    def response_action(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        """After an action from the page of an object, return to it."""
        response = super().response_action(request, queryset)
        number = request.POST.get("back", "")
        if response and number.isdecimal() and response.get("Location") == request.get_full_path():
            return redirect(f"admin:{self.opts.label_lower.replace('.', '_')}_change", number)
        return response


class SalePages(PageActions):
    """The page of a sale, with all that belongs to it."""

    change_form_template = "admin/shop/sale/change_form.html"

    def get_urls(self) -> list[Any]:
        """Add the export and the packing list."""
        view = self.admin_site.admin_view
        return [
            path("<int:pk>/orders.csv", view(require_safe(self.export)), name="shop_sale_export"),
            path("<int:pk>/packing/", view(self.packing), name="shop_sale_packing"),
            *super().get_urls(),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show the report and the actions of the sale above its form."""
        if sale := self.get_object(request, object_id):
            extra_context = {
                # Not read for a form that is saved.
                "report": SimpleLazyObject(partial(report_of, sale=sale)),
                "chart": {"width": WIDTH, "height": HEIGHT, "lines": (0, HEIGHT // 2, HEIGHT)},
                "gates": [one for gate in gates for one in gate.figures(sale=sale)],
                "sees_orders": request.user.has_perms(PERSONAL),
                "latest": sale.orders.order_by("-pk").select_related("customer", "address")[
                    :LATEST
                ],
            }
        return super().change_view(request, object_id, form_url, extra_context)

    def export(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """Return the orders of the sale as CSV."""
        sale = self._sale(request, pk)
        response = StreamingHttpResponse(export_orders(sale=sale), content_type="text/csv")
        response.headers["Content-Disposition"] = f'attachment; filename="{sale.slug}-orders.csv"'
        response.headers["Cache-Control"] = "no-store"
        return response

    def packing(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show what is to be packed, to be printed; a POST marks what was listed as shipped."""
        sale = self._sale(request, pk)
        if request.method == "POST":
            return self._ship(request, sale)
        listed = to_pack(sale=sale).select_related("order__customer")
        paid = Order.objects.filter(sale=sale, status=Order.Status.PAID)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "sale": sale,
            "addresses": listed[:PER_LIST],
            "count": listed[:COUNTED].count(),
            "without_address": paid.filter(address=None)[:COUNTED].count(),
            "counted": COUNTED,
            "may_ship": request.user.has_perm(SHIP),
            "title": _("Packing list"),
        }
        return TemplateResponse(request, "admin/shop/sale/packing.html", context)

    def _ship(self, request: HttpRequest, sale: Sale) -> HttpResponse:
        if not request.user.has_perm(SHIP):
            raise PermissionDenied
        sent = [PRINTED.fullmatch(one) for one in request.POST.getlist("printed")]
        printed = {int(one[1]): int(one[2]) for one in sent if one}
        if None in sent:
            raise BadInput
        if not sent:
            self.message_user(request, _("Tick the orders that are packed."), messages.WARNING)
        count = mark_shipped(sale=sale, printed=printed)
        if count:
            text = ngettext(
                "%d order is marked as shipped.", "%d orders are marked as shipped.", count
            )
            said = gettext_noop("Orders marked as shipped: {count}.")
            self.log_change(request, sale, entry(said, count=count))
            self.message_user(request, text % count, messages.SUCCESS)
        if kept := len(printed) - count:
            text = ngettext(
                "%d order was not marked: its address changed, it is no longer paid, or it was"
                " marked before.",
                "%d orders were not marked: their addresses changed, they are no longer paid, or"
                " they were marked before.",
                kept,
            )
            self.message_user(request, text % kept, messages.WARNING)
        return redirect("admin:shop_sale_packing", sale.pk)

    def _sale(self, request: HttpRequest, pk: int) -> Sale:
        if not request.user.has_perms(PERSONAL):
            raise PermissionDenied
        return get_object_or_404(Sale.objects.select_related("product"), pk=pk)
