from django.db import migrations
from django.db.models.functions import Lower


def lower(apps, schema_editor):
    apps.get_model("shop", "User").objects.update(email=Lower("email"))


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0017_addresses_by_shipping'),
    ]

    operations = [migrations.RunPython(lower, migrations.RunPython.noop)]
