"""A purchase whose reply is lost."""

from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from loadtest.scenarios.scenario import Facts, scenario
from loadtest.scenarios.steps import sold
from loadtest.scenarios.testbed import Testbed


@scenario(
    name="retry-after-lost-reply",
    fault="reply",
    row="F10",
    title=_("The reply is lost, and the customer buys again"),
    broken=gettext_noop("redis + conditional, a new key"),
    repaired=gettext_noop("redis + conditional, the same key"),
    story=_(
        "Buyer A's process wrote the order and was killed before it replied. The customer pressed "
        "again: buyer B in the chart.\n"
        "The second form had a key of its own, and B bought another unit after %(b_waited)s: "
        "%(b_sold)d sold to a customer who wanted one.\n"
        "With the key of the first form, the shop found the order after %(r_waited)s and returned "
        "it to B: %(r_sold)d sold."
    ),
    repair=_("An idempotency key: the form keeps it, and the order's row has it as a unique key."),
    immune=_("None: a lock serializes purchases, and cannot know that two are the same."),
    requires_overlap=False,
)
def _reply_lost(testbed: Testbed, is_repaired: bool) -> Facts:
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
