"""The site of the admin: its name, and its index as merchants use it."""

from typing import Any

from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig
from django.http import HttpRequest

FIRST = ("shop", "inventory", "waiting_room"), ("Sale", "Order", "Product")
"""Apps and models that merchants use daily."""


class ShopAdmin(AdminSite):
    """The pages of staff."""

    site_header = site_title = settings.SHOP_NAME
    enable_nav_sidebar = False  # it takes a quarter of the width from the lists

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        """Return the apps in the order in which merchants use them, the same in each language."""
        apps = super().get_app_list(request, app_label)
        for app in apps:
            app["models"].sort(key=lambda model: model["object_name"] not in FIRST[1])
        return sorted(apps, key=lambda app: (*FIRST[0], app["app_label"]).index(app["app_label"]))


class ShopAdminConfig(AdminConfig):
    """Django's admin with this site."""

    default_site = "shop.administration.admin_site.ShopAdmin"
