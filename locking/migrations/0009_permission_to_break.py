from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("locking", "0008_next_token")]

    operations = [
        migrations.AlterModelOptions(
            name="heldlock",
            options={
                "default_permissions": ("view",),
                "permissions": [("release_lock", "Can break a lock that another caller holds")],
                "verbose_name": "held lock",
                "verbose_name_plural": "held locks",
            },
        )
    ]
