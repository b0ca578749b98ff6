"""Template filters for times and prices, and parts that all viewers of a page share."""

import re
from datetime import datetime
from decimal import Decimal
from functools import partial

from django import template
from django.conf import settings
from django.forms import BoundField
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from inventory.money import with_sign
from shop.models import Sale
from shop.platform.shared_pages import fragment
from shop.sales.guards import guard_title

register = template.Library()


class SharedNode(template.Node):
    """A part of a page that is the same for all viewers; see `shared`."""

    def __init__(
        self, values: list[template.base.FilterExpression], nodelist: template.NodeList
    ) -> None:
        self.values, self.nodelist = values, nodelist

    def render(self, context: template.Context) -> SafeString:
        """Return what was rendered last for these values, or render it."""
        name = "/".join(str(value.resolve(context)) for value in self.values)
        return fragment(name, partial(self.nodelist.render, context))


@register.tag
def shared(parser: template.base.Parser, token: template.base.Token) -> SharedNode:
    """Render {% shared "name" value ... %} ... {% endshared %} once for all viewers of a language.

    What is in between must depend on nothing but the values.
    """
    values = [parser.compile_filter(one) for one in token.split_contents()[1:]]
    nodelist = parser.parse(("endshared",))
    parser.delete_first_token()
    return SharedNode(values, nodelist)


@register.filter
def money(amount: Decimal) -> str:
    """Return a price with the sign of the shop's currency."""
    return with_sign(amount, settings.CURRENCY)


register.filter("sign", with_sign)


register.filter("guard", guard_title)


@register.filter
def clauses(headline: str) -> SafeString:
    """Return a headline that wraps between its clauses; within one only if it has no room."""
    parts = re.findall(r"([^.，!]+[.，!]?)(\s*)", headline)
    return format_html_join("", '<span class="clause">{}</span>{}', parts)


@register.filter
def grouped(number: int) -> SafeString:
    """Return the digits in groups; copied, they are the plain number."""
    return format_html_join("", "<span>{}</span>", ([part] for part in f"{number:,}".split(",")))


@register.filter
def control(field: BoundField) -> SafeString:
    """Return the control of a field; the first one with an error gets the focus."""
    faulty = [one.name for one in field.form if one.errors]
    focus: dict[str, str | bool] = {"autofocus": field.name == faulty[0]} if faulty else {}
    return field.as_widget(attrs=focus)


@register.filter
def discount(sale: Sale) -> int:
    """Return the discount on the product's price in per cent, rounded down."""
    full = sale.product.price
    return max(0, int(100 * (full - sale.price) / full)) if full else 0


@register.filter
def fold(sale: Sale) -> str:
    """Return the price in tenths of the product's, as Chinese shops write it: 2.5 is 75 % off."""
    return f"{(100 - discount(sale)) / 10:g}"


@register.filter
def zone(when: datetime) -> str:
    """Return the server's time zone at that time, e.g. UTC+8 or UTC+5:30."""
    offset = f"{timezone.localtime(when):%z}"  # +0800
    return f"UTC{offset[0]}{int(offset[1:3])}" + (f":{offset[3:]}" if int(offset[3:]) else "")


@register.simple_tag
def server_zone() -> str:
    """Return the server's current time zone."""
    return zone(timezone.now())


@register.filter
def moment(when: datetime) -> SafeString:
    """Return a <time> element in the server's zone, which shop.js converts to the reader's zone.

    The date is left out for today.
    """
    local, today = timezone.localtime(when), timezone.localdate()
    style = "%H:%M" if local.date() == today else "%m-%d %H:%M"
    if local.year != today.year:
        style = "%Y-%m-%d %H:%M"
    return format_html(
        '<time datetime="{}" data-moment>{} {}</time>',
        when.isoformat(),
        f"{local:{style}}",
        zone(when),
    )
