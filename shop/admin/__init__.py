"""Sales, orders and users in the admin.

Prices, stock and orders are written once, through the services, and are read-only afterwards.
"""

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from locking.admin import ReadOnlyAdmin
from shop.admin.sales import SaleAdmin
from shop.models import Order, Payment, RejectedReservation, Sale, User

admin.site.site_header = admin.site.site_title = _("Flash Sale")
admin.site.register(Sale, SaleAdmin)


@admin.register(User)
class AccountAdmin(UserAdmin):  # type: ignore[type-arg]
    """Customers and staff. Only superusers change permissions and the accounts of staff."""

    list_display = ("username", "email", "is_staff", "is_active", "date_joined", "last_login")
    permission_fields = ("is_staff", "is_superuser", "groups", "user_permissions")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Make the permissions read-only for staff who are not superusers."""
        fields = super().get_readonly_fields(request, obj)
        return fields if request.user.is_superuser else (*fields, *self.permission_fields)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Protect the accounts of staff: setting a password allows signing in as that user."""
        return super().has_change_permission(request, obj) and self._may_change(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Protect the accounts of staff."""
        return super().has_delete_permission(request, obj) and self._may_change(request, obj)

    def _may_change(self, request: HttpRequest, obj: Any) -> bool:
        is_staff = obj is not None and (obj.is_staff or obj.is_superuser)
        return request.user.is_superuser or not is_staff


@admin.register(Order)
class OrderAdmin(ReadOnlyAdmin):
    """Orders, read-only: customers and scheduled jobs change them."""

    list_display = ("number", "customer", "sale", "quantity", "unit_price", "status", "created_at")
    list_filter = ("status", "created_at", "sale__fulfilment", "sale__product")
    list_select_related = ("customer", "sale__product")
    search_fields = ("number", "customer__username", "sale__slug")
    show_full_result_count = False


@admin.register(RejectedReservation)
class RejectedReservationAdmin(ReadOnlyAdmin):
    """Reservations of queued sales that did not become orders, and why."""

    list_display = ("number", "sale", "customer_id", "quantity", "reason", "created_at")
    list_filter = ("reason", "sale__slug")
    list_select_related = ("sale__product",)
    search_fields = ("number", "customer_id", "detail")
    show_full_result_count = False


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    """Payments, read-only: the payment provider decides them."""

    list_display = ("reference", "order", "amount", "status", "created_at", "closed_at")
    list_filter = ("status", "created_at")
    list_select_related = ("order",)
    search_fields = ("reference", "order__number")
    show_full_result_count = False
