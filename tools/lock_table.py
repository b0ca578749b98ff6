"""Write the tables of backends: properties in docs/reference/locks.md, failures in the READMEs.

.venv/bin/python tools/lock_table.py
"""

import os
import re
import sys
from pathlib import Path

import django
from django.utils.module_loading import import_string

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
django.setup()  # before the imports: the library reads the settings, and they import the library
PAGE = ROOT / "docs/reference/locks.md"
PART = "lock_table"
MEASURED = ROOT / "docs/measurements/locks.md"
SUMMARY = "lock_summary"

from loadtest.charts import marked  # noqa: E402
from locking.backends.base import PROPERTIES, Capabilities  # noqa: E402

BACKENDS = {
    "none": "none.NoneBackend",
    "process": "process.ProcessBackend",
    "database": "database.DatabaseBackend",
    "mysql_session": "mysql_session.MySQLSessionBackend",
    "redis": "redis.RedisBackend",
    "redlock": "redlock.RedLockBackend",
    "zookeeper": "zookeeper.ZooKeeperBackend",
}
"""Every backend of the library, by its usual alias."""


def capabilities() -> dict[str, Capabilities]:
    """Return what each backend of the library declares, by alias."""
    return {
        alias: import_string(f"locking.backends.{path}").capabilities
        for alias, path in BACKENDS.items()
    }


READMES = {
    "README.md": "lock|holder killed: next grant|holder paused: its late write|store fails over"
    "|store's clock jumps|hand-off p50, ms|when its session ends|when its lease ends"
    "|rejected by the fence|needs a conditional write|lock survives|lock may be lost"
    "|two holders|two holders if a majority jumps|no effect",
    "README.zh-CN.md": "锁|持有者被 kill -9：何时让出|持有者暂停后的迟到写入|存储主从切换"
    "|存储时钟跳变|交接耗时 p50（毫秒）|会话结束时|租约到期时"
    "|被围栏令牌拒绝|须靠条件更新兜底|锁不丢|锁可能丢失"
    "|出现两个持有者|多数节点跳变才有两个持有者|无影响",
}
"""The texts of the summary in each language: six titles, then the cells."""


def summary(texts: str) -> str:
    """Return what each lock between machines does in four failures, and its measured hand-off."""
    *titles, session, lease, fenced, unfenced, survives, lost, two, majority, unaffected = (
        texts.split("|")
    )
    rows = []
    for alias, declared in capabilities().items():
        measured = re.search(rf"^\| \*\*{alias}\*\* \|(.*)", MEASURED.read_text(), re.M)
        if declared.exclusion == "machines" and measured:
            jump = majority if declared.survives_minority else two
            rows.append(
                (
                    f"`{alias}`",
                    session if declared.session_bound else lease,
                    fenced if declared.fencing else unfenced,
                    survives if declared.survives_minority else lost,
                    jump if declared.expires else unaffected,
                    measured[1].split("|")[3].strip(),
                )
            )
    return marked.table(titles, rows)


def markdown() -> str:
    """Return the table of properties as Markdown."""
    rows = []
    for alias, declared in capabilities().items():
        marks = ("yes" if getattr(declared, name) else "-" for name in PROPERTIES)
        rows.append([f"`{alias}`", declared.exclusion, *marks])
    return marked.table(["backend", "excludes", *PROPERTIES.values()], rows)


if __name__ == "__main__":
    marked.write(PAGE, PART, markdown())
    for name, texts in READMES.items():
        marked.write(ROOT / name, SUMMARY, summary(texts))
