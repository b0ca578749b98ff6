"""Make an idempotency key unique per customer and sale, no longer per customer."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0006_payment_amount")]

    operations = [
        # In this order, so that no moment is without a unique index.
        migrations.AddConstraint(
            "order",
            models.UniqueConstraint(
                fields=["customer", "sale", "key"], name="one_order_per_form"
            ),
        ),
        migrations.RemoveConstraint("order", "one_order_per_key"),
    ]
