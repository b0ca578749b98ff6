"""The URLs of the shop."""

from django.apps import apps
from django.contrib import admin
from django.urls import include, path, re_path
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import RedirectView

from shop.payments.providers import can_pay
from shop.web import (
    accounts,
    api,
    health,
    operations,
    orders,
    pages,
    payments,
    purchase,
    reservations,
)

urlpatterns = [
    path("", pages.home, name="home"),
    path("live/", pages.home_live, name="home-live"),
    path("products/", pages.products, name="products"),
    path("products/<slug:slug>/", pages.product, name="product"),
    path("sales/<slug:slug>/", pages.sale, name="sale"),
    path("sales/<slug:slug>/stock/", pages.sale_stock, name="sale-stock"),
    path("sales/<slug:slug>/token/", pages.sale_token, name="sale-token"),
    path("sales/<slug:slug>/buy/", purchase.buy, name="buy"),
    path("api/sales/", api.sales, name="api-sales"),
    path("api/sales/<slug:slug>/stock/", api.stock, name="api-stock"),
    path("api/openapi.json", api.description, name="api-description"),
    path("sales/<slug:slug>/remind/", accounts.remind, name="remind"),
    path("reservations/<str:token>/", reservations.reservation, name="reservation"),
    re_path(r"^media/products/(?P<name>[0-9a-f]{16}\.webp)$", pages.photo, name="photo"),
    path("orders/", orders.orders, name="orders"),
    path("orders/<slug:number>/", orders.order, name="order"),
    path("orders/<slug:number>/cancel/", orders.cancel, name="cancel"),
    path("orders/<slug:number>/refund/", orders.refund, name="refund"),
    path("orders/<slug:number>/address/", orders.address, name="address"),
    path("accounts/sign-up/", accounts.SignUp.as_view(), name="sign-up"),
    path("accounts/sign-in/", accounts.SignIn.as_view(), name="login"),
    path("accounts/sign-out/", accounts.sign_out, name="sign-out"),
    path("accounts/profile/", accounts.profile, name="profile"),
    path("accounts/password/", accounts.password, name="password"),
    path("accounts/reset/", accounts.PasswordReset.as_view(), name="password-reset"),
    path("accounts/reset/sent/", accounts.reset_sent, name="password-reset-done"),
    path("accounts/reset/<uidb64>/<token>/", accounts.NewPassword.as_view(), name="password-new"),
    path("ops/", operations.index, name="ops"),
    path("ops/live/", operations.live, name="ops-live"),
    path("ops/statistics/", operations.statistics, name="ops-statistics"),
    path("ops/switch/", operations.switch, name="ops-switch"),
    path("ops/cancel/", operations.cancel, name="ops-cancel"),
    path("ops/audit/", operations.audit, name="ops-audit"),
    path("livez", health.livez, name="livez"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
    # Instead of Django's views, which have no rate limit.
    path("admin/login/", RedirectView.as_view(pattern_name="login", query_string=True)),
    path("admin/password_change/", RedirectView.as_view(pattern_name="password")),
    path("admin/", admin.site.urls),
    # Without a CSRF token, so that a page can be the same for all visitors.
    path("i18n/setlang/", csrf_exempt(accounts.set_language), name="set_language"),
]
if can_pay():
    urlpatterns += [
        path("orders/<slug:number>/payment/", payments.start, name="payment"),
        path("payments/webhook/", payments.webhook, name="payment-webhook"),
        path("payments/<slug:reference>/", payments.page, name="payment-page"),
    ]
if apps.is_installed("waiting_room"):
    urlpatterns.append(path("", include("waiting_room.urls")))
if apps.is_installed("loadtest"):
    urlpatterns.append(path("", include("loadtest.web.urls")))

handler400 = "shop.errors.bad_request"
handler403 = "shop.errors.not_allowed"
handler404 = "shop.errors.not_found"
handler500 = "shop.errors.server_error"
