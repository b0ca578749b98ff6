"""The site of the admin: its name, and its index as merchants use it."""

from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

FIRST = ("shop", "inventory", "waiting_room"), ("Sale", "Order", "Product")
"""Apps and models that merchants use daily."""
COUNTED = 1000
"""Rows of each kind that the index counts."""


class ShopAdmin(AdminSite):
    """The pages of staff."""

    site_header = site_title = settings.SHOP_NAME
    enable_nav_sidebar = False  # it takes a quarter of the width from the lists

    def index(self, request: HttpRequest, extra_context: Any = None) -> TemplateResponse:
        """Show above the models how many sales are open, and which orders wait for someone."""
        now = timezone.now()
        sales, orders, addresses = (
            apps.get_model("shop", name).objects for name in ("Sale", "Order", "DeliveryAddress")
        )
        running = sales.filter(is_listed=True, opens_at__lte=now, closes_at__gt=now)
        to_ship = addresses.filter(shipped_at=None, order__status="paid")
        rows = (
            ("sale", _("Open sales"), running, ""),
            ("order", _("Paid, not shipped"), to_ship, "?to_ship=1"),
            (
                "order",
                _("Waiting for payment"),
                orders.filter(status="pending"),
                "?status__exact=pending",
            ),
        )
        due = [
            (title, found[:COUNTED].count(), reverse(f"admin:shop_{name}_changelist") + query)
            for name, title, found, query in rows
            if request.user.has_perm(f"shop.view_{name}")
        ]
        return super().index(request, {"due": due, "counted": COUNTED})

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Return the apps in the order in which merchants use them, the same in each language."""
        apps = super().get_app_list(request, app_label)
        for app in apps:
            app["models"].sort(key=lambda model: model["object_name"] not in FIRST[1])
        return sorted(apps, key=lambda app: (*FIRST[0], app["app_label"]).index(app["app_label"]))


class ShopAdminConfig(AdminConfig):
    """Django's admin with this site."""

    default_site = "shop.administration.admin_site.ShopAdmin"
