"""The pages. A view parses, calls one service and renders."""

from django.urls import path

from shop.web import accounts, gateway, health, operations, pages
from shop.web import purchase as buying
from shop.web import reservations as queued

urlpatterns = [
    path("", pages.home, name="home"),
    path("products/", pages.products, name="products"),
    path("products/<slug:slug>/", pages.product, name="product"),
    path("sales/<slug:slug>/", pages.sale, name="sale"),
    path("sales/<slug:slug>/stock/", pages.sale_stock, name="sale-stock"),
    path("sales/<slug:slug>/buy/", buying.buy, name="buy"),
    path("tickets/<str:ticket>/", queued.ticket, name="ticket"),
    path("orders/", buying.orders, name="orders"),
    path("orders/<slug:number>/", buying.order, name="order"),
    path("orders/<slug:number>/pay/", buying.pay, name="pay"),
    path("orders/<slug:number>/cancel/", buying.cancel, name="cancel"),
    path("orders/<slug:number>/payment/", buying.payment, name="payment"),
    path("gateway/<slug:reference>/", gateway.show, name="gateway"),
    path("gateway/<slug:reference>/answer/", gateway.decide, name="gateway-answer"),
    path("payments/callback/", gateway.callback, name="payment-callback"),
    path("accounts/sign-up/", accounts.SignUp.as_view(), name="sign-up"),
    path("accounts/sign-in/", accounts.SignIn.as_view(), name="login"),
    path("accounts/sign-out/", accounts.sign_out, name="sign-out"),
    path("accounts/profile/", accounts.profile, name="profile"),
    path("accounts/password/", accounts.password, name="password"),
    path("ops/", operations.index, name="ops"),
    path("ops/live/", operations.live, name="ops-live"),
    path("ops/rest/", operations.rest, name="ops-rest"),
    path("ops/switch/", operations.switch, name="ops-switch"),
    path("ops/cancel/", operations.cancel, name="ops-cancel"),
    path("ops/audit/", operations.audit, name="ops-audit"),
    path("livez", health.livez, name="livez"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
]
