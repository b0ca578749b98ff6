"""The Django application of the shop's e-mail."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class MailConfig(AppConfig):
    """Messages to customers."""

    name, verbose_name = "shop.mail", _("E-mail")
