"""The commands of docs/how-to/buy-with-curl.md buy from a running shop, once."""

import json
import subprocess

import pytest

from shop.models import Order, User
from tests.docs.pages import BLOCKS
from tests.shop.conftest import in_force
from tests.shop.making import a_sale

__all__ = ["in_force"]
PAGE = "docs/how-to/buy-with-curl.md"


@pytest.mark.django_db(transaction=True)
def test_commands_buy_once(in_force, live_server, settings, tmp_path) -> None:
    settings.LOCK_TIMEOUT = settings.HARD_DEADLINE = 60.0
    User.objects.create_user("li", password=settings.DEMO_PASSWORD)
    sale = a_sale()
    code = "\n".join(block.code for block in BLOCKS if (block.page, block.language) == (PAGE, "sh"))
    code = code.replace("SALE=headphones", f"SALE={sale.slug}")
    code = code.replace("SHOP=http://127.0.0.1:8000", f"SHOP={live_server.url}")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    decoder, printed, at = json.JSONDecoder(), [], 0
    while at < len(done.stdout.strip()):
        value, at = decoder.raw_decode(done.stdout, at)
        printed.append(value)
        at += len(done.stdout[at:]) - len(done.stdout[at:].lstrip())
    sales, stock, signed_in, order = printed
    assert sale.slug in [one["slug"] for one in sales["sales"]]
    assert (stock["left"], signed_in) == (10, 302)
    assert order["number"] == Order.objects.get().number
    assert (order["status"], order["lock"]["backend"]) == ("pending", "process")
