"""Every address of the shop."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("i18n/", include("django.conf.urls.i18n")),
    path("lab/", include("loadtest.urls")),
    path("", include("shop.views")),
]
