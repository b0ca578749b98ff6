"""The shop's settings, with the URLs of the reference implementation before the shop's."""

from shop.settings.lab import *  # noqa: F403

ROOT_URLCONF = "loadtest.bench.purchase.reference"
