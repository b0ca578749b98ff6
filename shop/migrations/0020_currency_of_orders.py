import inventory.money
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0019_order_of_payments'),
    ]

    operations = [
        migrations.AddField(
            model_name='order',
            name='currency',
            field=models.CharField(db_default='', default=inventory.money.default_currency, editable=False, max_length=3, verbose_name='currency'),
        ),
    ]
