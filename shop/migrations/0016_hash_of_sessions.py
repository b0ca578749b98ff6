from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0015_unpaid_limit_and_lock_of_orders'),
    ]

    operations = [
        migrations.RemoveField(model_name='user', name='rehashed'),
    ]
