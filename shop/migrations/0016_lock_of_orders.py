from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0015_unpaid_limit_and_lock_of_orders'),
    ]

    operations = [
        *(
            migrations.RemoveField(model_name='order', name=name)
            for name in ('lock_backend', 'lock_held_us', 'lock_token', 'lock_waited_us')
        ),
        migrations.AddField(
            model_name='order',
            name='lock',
            field=models.JSONField(editable=False, null=True),
        ),
    ]
