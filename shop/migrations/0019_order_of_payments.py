from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('shop', '0018_email_in_small_letters'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='payment',
            options={'ordering': ['-pk'], 'verbose_name': 'payment', 'verbose_name_plural': 'payments'},
        ),
    ]
