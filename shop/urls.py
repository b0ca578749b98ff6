"""Every address of the shop."""

from django.apps import apps
from django.contrib import admin
from django.urls import include, path

from shop.web.accounts import staff_sign_in

urlpatterns = [
    path("admin/login/", staff_sign_in),  # the admin's own counts no wrong passwords
    path("admin/", admin.site.urls),
    path("i18n/", include("django.conf.urls.i18n")),
    path("", include("shop.web.urls")),
]
if apps.is_installed("loadtest"):
    urlpatterns.append(path("lab/", include("loadtest.web.urls")))

handler400 = "shop.web.error_pages.bad_request"
handler403 = "shop.web.error_pages.not_allowed"
handler404 = "shop.web.error_pages.not_found"
handler500 = "shop.web.error_pages.server_error"
