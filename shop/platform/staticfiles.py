"""Storage of static files."""

from whitenoise.storage import CompressedManifestStaticFilesStorage  # type: ignore[import-untyped]


class Storage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Hashed names, which browsers cache forever, for files that `collectstatic` has collected.

    Any other file keeps its plain name, so a misspelt picture does not break its page.
    """

    manifest_strict = False

    def stored_name(self, name: str) -> str:
        """Return the hashed name, or `name` if the file was not collected."""
        try:
            return str(super().stored_name(name))
        except ValueError:
            return name
