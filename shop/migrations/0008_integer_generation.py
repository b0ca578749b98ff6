from django.db import migrations, models


def reset_sharded_sales(apps, schema_editor):
    """Forget the generations of sales with several shards: "12,34" is no number."""
    sales = apps.get_model("shop", "Sale").objects.using(schema_editor.connection.alias)
    sales.filter(generation__contains=",").update(generation="0")


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0007_key_per_sale'),
    ]

    operations = [
        migrations.RunPython(reset_sharded_sales, migrations.RunPython.noop),
        migrations.AlterField(
            model_name='sale',
            name='generation',
            field=models.PositiveIntegerField(default=0, editable=False, help_text='Identifies its state in Redis; every load changes it. 0 before the first.'),
        ),
    ]
