from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0012_payment_providers'),
    ]

    operations = [
        migrations.AddField(
            model_name='user',
            name='language',
            field=models.CharField(db_default='', default='', editable=False, max_length=10),
        ),
    ]
