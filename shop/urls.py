"""Every address of the shop."""

from django.apps import apps
from django.contrib import admin
from django.urls import include, path

from shop.views.accounts import staff_sign_in

urlpatterns = [
    path("admin/login/", staff_sign_in),  # the admin's own counts no wrong passwords
    path("admin/", admin.site.urls),
    path("i18n/", include("django.conf.urls.i18n")),
    path("", include("shop.views")),
]
if apps.is_installed("loadtest"):
    urlpatterns.append(path("lab/", include("loadtest.urls")))

handler400 = "shop.views.errors.bad_request"
handler403 = "shop.views.errors.not_allowed"
handler404 = "shop.views.errors.not_found"
handler500 = "shop.views.errors.server_error"
