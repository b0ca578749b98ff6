from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0020_currency_of_orders")]

    operations = [
        migrations.AlterField(
            model_name="sale",
            name="closes_at",
            field=models.DateTimeField(verbose_name="ends at"),
        ),
        migrations.AlterField(
            model_name="payment",
            name="answer_by",
            field=models.DateTimeField(verbose_name="respond by"),
        ),
    ]
