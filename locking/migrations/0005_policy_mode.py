from django.db import migrations, models

RENAMED = (
    ("lockpolicy", "strategy", "mode", {"verbose_name": "mode", "blank": True}),
    ("lockpolicy", "next_strategy", "next_mode", {"blank": True}),
    ("lockpolicychange", "from_strategy", "from_mode", {"verbose_name": "from mode"}),
    ("lockpolicychange", "to_strategy", "to_mode", {"verbose_name": "to mode"}),
)


class Migration(migrations.Migration):
    """Keeps the names of the columns, so that old processes can read them."""

    dependencies = [("locking", "0004_held_lock")]
    operations = [
        operation
        for model, old, new, options in RENAMED
        for operation in (
            migrations.AlterField(model, old, models.CharField(max_length=20, db_column=old, **options)),
            migrations.RenameField(model, old, new),
        )
    ]
