"""The URLs of the lab, under /lab/ and /learn/, and of its payment provider."""

from django.conf import settings
from django.urls import path

from loadtest.web import game, gateway, learn, mailbox, questions, views

urlpatterns = [
    *(gateway.urlpatterns if settings.PAYMENT_PROVIDER == "simulated" else ()),
    path("learn/", learn.course, name="learn"),
    path("learn/grid/", learn.grid, name="learn-grid"),
    path("learn/questions/", questions.questions, name="learn-questions"),
    path("learn/<slug:name>.<slug:language>.png", views.preview, name="learn-preview"),
    path("learn/<slug:name>/", learn.lesson, name="learn-step"),
    path("learn/<slug:name>/play/", game.play, name="game"),
    path("lab/mail/", mailbox.mailbox, name="mailbox"),
    path("lab/mail/<int:pk>/", mailbox.as_html, name="mail"),
    path("lab/", views.index, name="lab"),
    path("lab/start/", views.start, name="lab-start"),
    path("lab/traffic/", views.send_traffic, name="lab-traffic"),
    path("lab/command/", views.command, name="lab-command"),
    path("lab/scenarios/<slug:name>/play/", views.start_scenario, name="lab-play"),
    path("lab/compare/", views.compare, name="lab-compare"),
    path("lab/runs/<uuid:run_id>/", views.show, name="lab-run"),
    path("lab/runs/<uuid:run_id>/stop/", views.stop, name="lab-stop"),
    path("lab/runs/<uuid:run_id>/fault/", views.inject, name="lab-fault"),
    path("lab/runs/<uuid:run_id>/again/", views.repeat, name="lab-again"),
    path("lab/runs/<uuid:run_id>/report.<slug:suffix>", views.download, name="lab-file"),
    path("lab/runs/<uuid:run_id>/preview.<slug:language>.png", views.preview, name="lab-preview"),
    path("lab/runs/<uuid:run_id>/<slug:half>.<slug:suffix>", views.chart, name="lab-chart"),
]
