from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('locking', '0002_lockrow'),
    ]

    operations = [
        migrations.AddField(
            model_name='lockrow',
            name='waiter',
            field=models.CharField(blank=True, default='', max_length=150),
        ),
        migrations.AddField(
            model_name='lockrow',
            name='waiter_until',
            field=models.BigIntegerField(default=0),
        ),
    ]
