"""Waiting rooms in the admin: chosen for a sale, and controlled while people wait."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from inventory.admin import KeepingForm
from locking.admin import confirm
from shop.admin.sale_pages import PageActions
from shop.errors import STORE_ERRORS, BadInput, NotFound, ShopError
from shop.models import Sale
from waiting_room import service
from waiting_room.models import MAX_INLET, Room

RUNNING = ("state", "people", "inlet_per_minute")
"""What goes on in a room."""
UNAVAILABLE = _(
    "Its store is unavailable or has lost the places. Try again in a moment; reset the room if the"
    " store is up again and the room stays closed."
)


def _now(room: Room) -> tuple[str, str]:
    """Return the state and the numbers of people; dashes without a room or long after its end."""
    try:
        now = service.status_of(sale=room.sale)
    except (NotFound, *STORE_ERRORS):
        return "–", "–"
    return str(service.STATES[now.state]), f"{now.joined} / {now.serving} / {now.waiting}"


class RoomActionForm(ActionForm):
    """The actions on rooms, with the number of people to admit per minute."""

    # Any text, which `set_inlet` explains: Django would say that no action was selected.
    per_minute = forms.CharField(
        label=_("People per minute"), required=False, widget=forms.NumberInput
    )


class RoomForm(KeepingForm):
    """The fields of a room."""

    class Meta:
        help_texts = {
            "inlet_per_minute": _(
                "If fewer people arrive per minute, no one waits. The default is what the shop can"
                " serve."
            )
        }


@admin.register(Room)
class RoomAdmin(PageActions):
    """Rooms with what is going on in them; the inlet and pauses are actions."""

    form = RoomForm
    list_display = ("sale", "mode", *RUNNING)
    list_select_related = ("sale__product", "sale__stock")
    search_fields = ("sale__slug",)
    action_form = RoomActionForm
    actions = ("set_inlet", "pause", "resume", "reset")

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Return a room that is one: the mode "No waiting room" ends one."""
        return {"mode": Room.Mode.ARRIVAL, **super().get_changeform_initial_data(request)}

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Forbid deletion: the mode "No waiting room" keeps the record of the draw."""
        return False

    def get_fields(self, request: HttpRequest, obj: Room | None = None) -> Any:
        """Return the fields of a new room, or those of a room and what goes on in it."""
        if obj is None:
            return ("sale", "mode", "inlet_per_minute")
        return ("sale", "mode", *RUNNING, "message", "message_zh")

    def get_readonly_fields(self, request: HttpRequest, obj: Room | None = None) -> Any:
        """Keep the room with its sale; its inlet changes by an action, which asks to confirm."""
        return () if obj is None else ("sale", *RUNNING)

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Offer the sales that have not ended and have no room."""
        free = Sale.objects.filter(closes_at__gt=timezone.now(), room=None)
        kwargs["queryset"] = free.select_related("product")
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: Room, form: Any, change: bool) -> None:
        """Save a new room or its mode, and broadcast a changed message."""
        if not change:
            super().save_model(request, obj, form, change)
            return
        texts = {name: form.cleaned_data[name] for name in ("message", "message_zh")}
        if not texts.keys() & set(form.changed_data):
            texts = {}
        if "mode" in form.changed_data:
            service.set_mode(room=obj, mode=obj.mode, **texts)
        elif texts:
            service.broadcast(room=obj, **texts)

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Undo the whole change if its mode or message is refused, and report that."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except ShopError as error:
            self._report(request, Room.objects.get(pk=args[0]), error)
            return HttpResponseRedirect(request.get_full_path())

    @admin.display(description=_("state"))
    def state(self, room: Room) -> str:
        """Return the state of the room, as visitors are told."""
        return _now(room)[0]

    @admin.display(description=_("joined / admitted / waiting"))
    def people(self, room: Room) -> str:
        """Return how many people have a place, are admitted, and are not."""
        return _now(room)[1]

    @admin.action(description=_("Set people per minute"), permissions=["change"])
    def set_inlet(self, request: HttpRequest, rooms: QuerySet[Room]) -> HttpResponse | None:
        """Set the inlet of the selected rooms; above the measured rate, ask to confirm."""
        try:
            field = forms.IntegerField(min_value=1, max_value=MAX_INLET)
            per_minute = field.clean(request.POST.get("per_minute"))
        except forms.ValidationError as error:
            self.message_user(request, "; ".join(error.messages), messages.ERROR)
            return None
        shown = {"per_minute": per_minute, "usual": settings.WAITING_ROOM_INLET_PER_MINUTE}
        is_usual = per_minute <= settings.WAITING_ROOM_INLET_PER_MINUTE
        if not is_usual and (asked := self._confirm(request, rooms, "set_inlet", **shown)):
            return asked
        step = partial(service.set_inlet, per_minute=per_minute)
        return self._each(request, rooms, step, _("People admitted per minute: {old} → {new}."))

    @admin.action(description=_("Pause"), permissions=["change"])
    def pause(self, request: HttpRequest, rooms: QuerySet[Room]) -> None:
        """Admit no one until the rooms are resumed."""
        self._each(request, rooms, service.pause, _("Paused."))

    @admin.action(description=_("Resume"), permissions=["change"])
    def resume(self, request: HttpRequest, rooms: QuerySet[Room]) -> None:
        """Admit again."""
        self._each(request, rooms, service.resume, _("Resumed."))

    @admin.action(description=_("Reset: drop all places"), permissions=["change"])
    def reset(self, request: HttpRequest, rooms: QuerySet[Room]) -> HttpResponse | None:
        """Drop all places, once the sale's name or the number of rooms has been typed."""
        asked = self._confirm(request, rooms, "reset")
        step = partial(service.reset, reason=request.POST.get("reason", ""))
        return asked or self._each(request, rooms, step, _("All places were dropped."))

    def _confirm(
        self, request: HttpRequest, rooms: QuerySet[Room], step: str, **shown: Any
    ) -> HttpResponse | None:
        found = list(rooms)
        name = found[0].sale.slug if len(found) == 1 else str(len(found))
        template = "admin/waiting_room/room/confirm.html"
        return confirm(request, self, template, name=name, rooms=found, step=step, **shown)

    def _each(
        self, request: HttpRequest, rooms: QuerySet[Room], step: Callable[..., Room], done: Promise
    ) -> HttpResponse | None:
        for room in rooms:
            try:
                now = step(room=room, staff=request.user)
            except (ShopError, *STORE_ERRORS) as error:
                self._report(request, room, error)
            else:
                said = str(done).format(old=room.inlet_per_minute, new=now.inlet_per_minute)
                text = {"label": self.name_of(room), "error": said}
                self.message_user(request, _("%(label)s: %(error)s") % text, messages.SUCCESS)
        return None

    def name_of(self, row: Room) -> str:
        """Return the product and the last part of the address of the sale's page."""
        return f"{row.sale.product.title} ({row.sale.slug})"

    def _report(self, request: HttpRequest, room: Room, error: Exception) -> None:
        # The advice of other errors is for customers.
        problem = error.advice if isinstance(error, BadInput) else UNAVAILABLE
        if isinstance(error, NotFound):
            problem = _("The product of its sale is not listed: list it first.")
        text = {"sale": self.name_of(room), "problem": problem}
        said = _("%(sale)s: nothing was changed. %(problem)s") % text
        self.message_user(request, said, messages.ERROR)
