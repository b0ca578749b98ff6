from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('locking', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='LockRow',
            fields=[
                ('digest', models.CharField(max_length=32, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=200)),
                ('owner', models.CharField(blank=True, default='', max_length=150)),
                ('lock_count', models.PositiveIntegerField(default=0)),
                ('token', models.BigIntegerField(default=0)),
                ('ttl', models.BigIntegerField(default=0)),
                ('expires_at', models.BigIntegerField(default=0)),
            ],
            options={
                'verbose_name': 'lock row',
                'verbose_name_plural': 'lock rows',
            },
        ),
    ]
