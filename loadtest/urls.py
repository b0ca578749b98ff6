"""The lab's pages, under /lab/."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
