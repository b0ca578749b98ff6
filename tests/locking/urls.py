"""Addresses of the library's tests where the shop is not installed."""

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
