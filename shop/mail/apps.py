"""The Django application of the shop's email."""

from django.apps import AppConfig
from django.utils.translation import pgettext_lazy


class MailConfig(AppConfig):
    """Messages to customers."""

    name, verbose_name = "shop.mail", pgettext_lazy("messages", "Email")
