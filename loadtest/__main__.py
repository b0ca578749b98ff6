"""`python -m loadtest`: the process that stages runs in the stores that its environment names."""

import django

django.setup()

from loadtest.director import main  # noqa: E402 - its models need the settings

main()
