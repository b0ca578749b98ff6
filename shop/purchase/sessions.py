"""Web sessions whose end revokes their purchase tokens."""

from django.contrib.sessions.backends import cached_db

from shop.purchase.revocation import revoke_session


class SessionStore(cached_db.SessionStore):
    """Sessions in the database and the cache.

    Signing out, signing in as another customer and a change of the password all delete the session
    that they end. The removal of expired sessions revokes nothing.
    """

    def delete(self, session_key: str | None = None) -> None:
        """Revoke the tokens first: a session whose tokens cannot be revoked does not end."""
        key = session_key or self.session_key
        if key:
            revoke_session(key)
        super().delete(session_key)
