from django.db import migrations


def remove_from_schedule(apps, schema_editor):
    """Delete the row of a task that does not exist any more; beat would send it every 5 s."""
    rows = apps.get_model("django_celery_beat", "PeriodicTask").objects
    rows.filter(task="shop.tasks.open_and_close_sales").delete()


class Migration(migrations.Migration):

    dependencies = [
        ("shop", "0008_integer_generation"),
        ("django_celery_beat", "0018_improve_crontab_helptext"),
    ]

    operations = [migrations.RunPython(remove_from_schedule, migrations.RunPython.noop)]
