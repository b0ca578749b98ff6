"""How static files are named and kept."""

from whitenoise.storage import CompressedManifestStaticFilesStorage  # type: ignore[import-untyped]


class Storage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Names with a hash, which browsers keep for ever, for what `collectstatic` has seen.

    Anything else keeps its plain name: a picture that staff misspelt is missing, its page is not.
    """

    manifest_strict = False

    def stored_name(self, name: str) -> str:
        """The name with its hash, where there is one."""
        try:
            return str(super().stored_name(name))
        except ValueError:
            return name
