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
        migrations.AlterField(
            model_name="sale",
            name="fulfilment",
            field=models.CharField(
                choices=[
                    ("direct", "Direct: create the order before responding"),
                    ("queued", "Queued: reserve in Redis, create orders in batches"),
                ],
                default="direct",
                max_length=10,
                verbose_name="order processing",
            ),
        ),
    ]
