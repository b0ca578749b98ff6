"""The shop's own settings, with the reference's addresses in front of the shop's."""

from shop.settings.lab import *  # noqa: F403

ROOT_URLCONF = "loadtest.bench.reference.urls"
