"""The Django app of the lab."""

import re

from django.apps import AppConfig


class LoadtestConfig(AppConfig):
    """Load tests and scenarios, from the command line and under /lab/."""

    name = "loadtest"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let visitors share the pages of the course."""
        from shop.platform.shared_pages import SharedPage, shared_pages

        shared_pages.append(SharedPage(re.compile(r"/learn/([-\w]+/)?", re.ASCII)))
