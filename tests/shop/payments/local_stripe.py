"""A Stripe of one's own: localstripe, and what the shop needs of Stripe that it lacks.

    python -m tests.shop.payments.local_stripe 8420 [--webhook URL] [--chaos SEED]

It adds idempotency keys, the Payment Element with the payment by its browser, and webhooks that are
signed and sent again until they get through. With --chaos, some of them are sent twice, late or
after a later one, and some are forged: GET /_config/deliveries counts them with their replies.
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import aiohttp
import localstripe
import stripe
from aiohttp import web
from localstripe import resources, server, webhooks

LATE = 8.0
"""Seconds after which a late webhook is sent."""
FINAL = (200, 400, 403, 404)
ELEMENT = """
const Localstripe = Stripe;
Stripe = (key) => ({
  ...Localstripe(key),
  elements: ({clientSecret}) => {
    const own = Localstripe(key).elements();
    return {clientSecret, own, create: (kind) => own.create(kind === "payment" ? "card" : "?")};
  },
  confirmPayment: async ({elements}) => {
    const card = elements.own.getElement("card").value?.card;
    const id = elements.clientSecret.split("_secret_")[0];
    const url = `${LOCALSTRIPE_BASE_API}/v1/payment_intents/${id}/_authenticate/card`;
    const body = JSON.stringify({key, card, client_secret: elements.clientSecret});
    const reply = await (await fetch(url, {method: "POST", body})).json();
    return reply.error ? {error: reply.error} : {paymentIntent: reply};
  },
});
"""

deliveries: Counter[str] = Counter()
"""Webhooks by kind, and the replies to them."""
kept: dict[str, tuple[int, bytes]] = {}
"""The first reply to each idempotency key."""
refunds = defaultdict(list)
"""By charge; localstripe searches all its objects."""
chaos: random.Random | None = None
tasks: set[asyncio.Future[None]] = set()


@web.middleware
async def idempotency_middleware(request: web.Request, handler) -> web.StreamResponse:
    key = request.headers.get("Idempotency-Key")
    if key not in kept:
        reply = await handler(request)
        if key is None:
            return reply
        kept[key] = (reply.status, reply.body)
    status, body = kept[key]
    return web.Response(status=status, body=body, content_type="application/json")


async def pay_by_card(request: web.Request) -> web.Response:
    sent = await request.json()
    intent = resources.PaymentIntent._api_retrieve(request.match_info["id"])
    if sent["client_secret"] != intent.client_secret:
        raise server.UserError(401, "Unauthorized")
    if intent.status != "requires_payment_method":
        raise server.UserError(400, f"This payment is {intent.status}.")
    method = resources.PaymentMethod(type="card", card=sent.get("card"))
    intent.payment_method, intent.latest_charge = method.id, None
    intent._confirm(on_failure_now=intent._report_failure)
    return server.json_response(intent._export())


async def script(request: web.Request) -> web.Response:
    own = Path(localstripe.__file__).with_name("localstripe-v3.js").read_text()
    return web.Response(text=own + ELEMENT, content_type="application/javascript")


async def count_deliveries(request: web.Request) -> web.Response:
    return server.json_response({**deliveries, "waiting": len(tasks)})


def refunds_of(charge: resources.Charge) -> resources.List:
    found = resources.List()
    found._list = refunds[charge.id]
    return found


def remember_refund(self, *args, make=resources.Refund.__init__, **kwargs) -> None:
    make(self, *args, **kwargs)
    refunds[self.charge].append(self)


def schedule(event: resources.Event) -> None:
    body = json.dumps(event._export()).encode()
    roll = chaos.random() if chaos else 1.0
    wait = 0.0
    if event.type.endswith("failed"):  # sent after the success that follows it
        wait = LATE / 4 if chaos else 0.0
    elif roll < 0.05:
        send(body, "duplicated", copies=2)
        return
    elif roll < 0.10:
        wait = LATE
    elif roll < 0.11:
        send(body, "forged", secret="whsec_wrong")  # noqa: S106
        send(body, "stale", age=301)
    elif roll < 0.13:
        deliveries["lost"] += 1
        return
    kind = event.type if not wait else "late" if wait == LATE else "out of order"
    send(body, kind, wait=wait)


def send(body: bytes, kind: str, *, copies: int = 1, **options) -> None:
    for _ in range(copies):
        for webhook in webhooks._webhooks.values():
            task = asyncio.ensure_future(deliver(webhook, body, kind, **options))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


async def deliver(
    webhook: webhooks.Webhook, body: bytes, kind: str, *, wait=0.0, secret="", age=0
) -> None:
    """Send a webhook, signed anew each time, until it gets a reply that is final."""
    deliveries[kind] += 1
    await asyncio.sleep(wait)
    while True:
        signature = stripe.WebhookSignature.generate_signature_header(
            body.decode(), secret or webhook.secret, int(time.time()) - age
        )
        async with session() as client:
            try:
                reply = await client.post(
                    webhook.url, data=body, headers={"Stripe-Signature": signature}
                )
                if reply.status in FINAL:
                    deliveries[f"{kind} {reply.status}"] += 1
                    return
            except (aiohttp.ClientError, TimeoutError):
                pass
        deliveries["repeated"] += 1
        await asyncio.sleep(0.5)


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10))


def main() -> None:
    global chaos
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--chaos", type=int)
    parser.add_argument("--webhook", help="address to which they are sent")
    asked = parser.parse_args()
    if asked.webhook:
        webhooks.register_webhook("shop", asked.webhook, "whsec_local", None)
    chaos = random.Random(asked.chaos) if asked.chaos is not None else None
    resources.store.dump_to_disk = lambda: None  # to a file that all processes would share
    resources.Refund.__init__ = remember_refund
    resources.Charge.refunds = property(refunds_of)
    resources.schedule_webhook = schedule
    server.app.middlewares.append(idempotency_middleware)
    server.app.router.add_get("/js.stripe.com/element/", script)
    server.app.router.add_get("/_config/deliveries", count_deliveries)
    server.app.router.add_post("/v1/payment_intents/{id}/_authenticate/card", pay_by_card)
    web.run_app(server.app, host="127.0.0.1", port=asked.port, access_log=None, print=None)


if __name__ == "__main__":
    main()
