"""The names of locks and write strategies on pages: one for each, in each language.

Commands, settings and JSON use the aliases.
"""

from django.utils.functional import Promise
from django.utils.translation import gettext, pgettext_lazy

from inventory.models import WriteStrategy

LOCKS: dict[str, Promise] = {
    "none": pgettext_lazy("lock", "no lock"),
    "process": pgettext_lazy("lock", "process"),
    "database": pgettext_lazy("lock", "database"),
    "mysql_session": pgettext_lazy("lock", "mysql_session"),
    "postgresql_session": pgettext_lazy("lock", "postgresql_session"),
    "redis": pgettext_lazy("lock", "redis"),
    "redlock": pgettext_lazy("lock", "redlock"),
    "zookeeper": pgettext_lazy("lock", "zookeeper"),
}
STRATEGIES: dict[str, Promise] = {
    WriteStrategy.NAIVE: pgettext_lazy("write strategy", "naive"),
    WriteStrategy.FENCED: pgettext_lazy("write strategy", "fenced"),
    WriteStrategy.CONDITIONAL: pgettext_lazy("write strategy", "conditional"),
}


def guard_title(lock: str, strategy: str = "") -> str:
    """Return "redis + fenced"; "no lock" for naive writes without one, which nothing guards."""
    words = [str(LOCKS.get(lock, lock))]
    if strategy and (lock, strategy) != ("none", WriteStrategy.NAIVE):
        words.append(str(STRATEGIES.get(strategy, strategy)))
    return " + ".join(words)


def guard_words(text: str) -> str:
    """Return the name of a guard that is recorded as text, such as "redis + naive, watchdog"."""
    lock, _plus, strategy = text.partition(" + ")
    alias = "none" if lock == "no lock" else lock
    if alias in LOCKS and strategy in ("", *STRATEGIES):
        return guard_title(alias, strategy)
    return gettext(text)
