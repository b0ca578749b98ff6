"""The lab's pages, under /lab/."""

from django.urls import path

from loadtest import views

urlpatterns = [
    path("", views.index, name="lab"),
    path("start/", views.start, name="lab-start"),
    path("runs/<uuid:run_id>/", views.show, name="lab-run"),
]
