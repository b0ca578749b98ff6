from django.db import migrations


def create(apps, schema_editor):
    """The tokens of the backend postgresql_session."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("CREATE SEQUENCE IF NOT EXISTS locking_token")


def drop(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP SEQUENCE IF EXISTS locking_token")


class Migration(migrations.Migration):

    dependencies = [
        ('locking', '0005_policy_mode'),
    ]

    operations = [migrations.RunPython(create, drop)]
