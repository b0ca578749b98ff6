import inventory.pictures
from django.db import migrations, models


def move(apps, schema_editor):
    products = apps.get_model('inventory', 'Product').objects
    products.filter(photo='').update(photo=models.F('picture'))


class Migration(migrations.Migration):

    dependencies = [
        ('inventory', '0005_price_above_zero'),
    ]

    operations = [
        migrations.AlterField(
            model_name='product',
            name='photo',
            field=models.FileField(blank=True, db_default='', default='', help_text='JPEG, PNG or WebP, at most 8 MB and 25 million pixels.', max_length=120, upload_to=inventory.pictures.new_name, verbose_name='photo'),
        ),
        migrations.AlterField(
            model_name='product',
            name='picture',
            field=models.CharField(blank=True, db_default='', max_length=120),
        ),
        migrations.RunPython(move, migrations.RunPython.noop),
        # The version before still reads the column: a later one drops it.
        migrations.SeparateDatabaseAndState(
            state_operations=[migrations.RemoveField(model_name='product', name='picture')],
        ),
    ]
