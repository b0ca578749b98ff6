"""The URLs of the waiting room."""

from django.urls import path

from shop.web.accounts import remind
from waiting_room import views

urlpatterns = [
    path("room/verify_lottery.py", views.verifier, name="room-verifier"),
    path("sales/<slug:slug>/room/", views.room, name="room"),
    path("sales/<slug:slug>/room/join/", views.join, name="room-join"),
    path("sales/<slug:slug>/room/remind/", remind, {"page": "room"}, name="room-remind"),
    path("sales/<slug:slug>/room/place.json", views.place, name="room-place"),
    path("sales/<slug:slug>/room/status.json", views.status, name="room-status"),
    path("sales/<slug:slug>/room/record.json", views.record, name="room-record"),
    path(
        "sales/<slug:slug>/room/positions-<slug:prefix>.json",
        views.positions,
        name="room-positions",
    ),
]
