from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0016_hash_of_sessions'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='deliveryaddress',
            index=models.Index(fields=['shipped_at'], name='addresses_by_shipping'),
        ),
    ]
