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
    "mysql_session": pgettext_lazy("lock", "MySQL session"),
    "postgresql_session": pgettext_lazy("lock", "PostgreSQL session"),
    "redis": pgettext_lazy("lock", "Redis"),
    "redlock": pgettext_lazy("lock", "RedLock"),
    "zookeeper": pgettext_lazy("lock", "ZooKeeper"),
}
STRATEGIES: dict[str, Promise] = {
    WriteStrategy.NAIVE: pgettext_lazy("write strategy", "naive"),
    WriteStrategy.FENCED: pgettext_lazy("write strategy", "fenced"),
    WriteStrategy.CONDITIONAL: pgettext_lazy("write strategy", "conditional"),
}


def guard_title(lock: str, strategy: str = "") -> str:
    """Return "Redis + fenced"; "no lock" for naive writes without one, which nothing guards."""
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
    text = gettext(text)
    alias = next(filter(text.startswith, LOCKS), "")
    return f"{LOCKS[alias]}{text.removeprefix(alias)}" if alias else text
