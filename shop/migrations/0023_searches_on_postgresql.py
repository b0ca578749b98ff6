"""Let PostgreSQL search by the beginning of a value.

It compares capitals then, so it cannot use the indexes of the columns; and nothing uses those that
Django creates for LIKE.
"""

from django.db import migrations

SEARCHED = {"shop_order": ["number"], "shop_user": ["username", "email"]}
SEARCHED["shop_deliveryaddress"] = ["phone", "name"]


def create_indexes(apps, schema_editor):
    connection = schema_editor.connection
    if connection.vendor != "postgresql":
        return
    for table, columns in SEARCHED.items():
        with connection.cursor() as cursor:
            indexes = connection.introspection.get_constraints(cursor, table)
        for name, index in indexes.items():
            if name.endswith("_like") and index["columns"] in [[column] for column in columns]:
                schema_editor.execute(f'DROP INDEX "{name}"')
        for column in columns:
            index = f"{table}_{column}_begins ON {table} (UPPER({column}) text_pattern_ops)"
            schema_editor.execute(f"CREATE INDEX IF NOT EXISTS {index}")


class Migration(migrations.Migration):
    dependencies = [("shop", "0022_search_addresses")]
    operations = [migrations.RunPython(create_indexes, migrations.RunPython.noop)]
