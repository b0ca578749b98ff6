"""A purchase whose reply is lost."""

from django.utils.translation import gettext_noop

from loadtest.scenarios.scenario import Facts, scenario
from loadtest.scenarios.steps import sold
from loadtest.scenarios.testbed import Testbed


@scenario(
    fault="reply",
    row="F10",
    broken=gettext_noop("redis + conditional, a new key"),
    repaired=gettext_noop("redis + conditional, the same key"),
)
def retry_after_lost_reply(testbed: Testbed, is_repaired: bool) -> Facts:
    """Kill a buyer between its COMMIT and its reply, and send the form again."""
    testbed.use("conditional")
    sale, user = testbed.open_sale(2, limit_per_customer=2), testbed.create_customer()
    first, again = testbed.worker("buyer A"), testbed.worker("buyer B", timeout=5.0)
    form = {"sale": sale.pk, "user": user}
    first.start("buy", **form, key="1", fault="kill", at="stock.committed")
    first.wait_for_fault()
    key = "1" if is_repaired else "2"  # a new form has a new key
    waited = again.call("buy", **form, key=key)["seconds"]
    facts = sold(sale)
    return facts | {"waited": round(waited, 3), "broke": facts["sold"] > 1}
