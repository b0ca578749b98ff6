from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0014_delivery_addresses'),
    ]

    operations = [
        migrations.AddField(
            model_name='customerquota',
            name='expired',
            field=models.PositiveSmallIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name='order',
            name='lock',
            field=models.JSONField(editable=False, null=True),
        ),
    ]
