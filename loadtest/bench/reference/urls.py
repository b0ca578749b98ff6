"""The URLs of the reference implementation, then the shop's: one server serves both."""

from django.urls import include, path

from loadtest.bench.reference import views
from shop.urls import handler400, handler403, handler404, handler500

__all__ = ["handler400", "handler403", "handler404", "handler500"]

urlpatterns = [
    path("reference/<slug:slug>/buy/", views.buy),
    path("empty/", views.empty),
    path("", include("shop.urls")),
]
