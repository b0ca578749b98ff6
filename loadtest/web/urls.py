"""The URLs of the lab, under /lab/."""

from django.urls import path

from loadtest.web import views

urlpatterns = [
    path("", views.index, name="lab"),
    path("start/", views.start, name="lab-start"),
    path("command/", views.command, name="lab-command"),
    path("scenarios/", views.scenario_list, name="lab-scenarios"),
    path("scenarios/<slug:name>/play/", views.start_scenario, name="lab-play"),
    path("compare/", views.compare, name="lab-compare"),
    path("runs/<uuid:run_id>/", views.show, name="lab-run"),
    path("runs/<uuid:run_id>/stop/", views.stop, name="lab-stop"),
    path("runs/<uuid:run_id>/again/", views.repeat, name="lab-again"),
    path("runs/<uuid:run_id>/report.<slug:suffix>", views.download, name="lab-file"),
    path("runs/<uuid:run_id>/<slug:half>.<slug:suffix>", views.chart, name="lab-chart"),
]
