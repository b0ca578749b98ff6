from django.db import migrations, models


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
        ),
        migrations.AlterField(
            model_name="jobrun",
            name="duplicates",
            field=models.PositiveIntegerField(default=0, verbose_name="refused duplicates"),
        ),
    ]
