from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("loadtest", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="labrun",
            name="requested_fault",
            field=models.CharField(
                blank=True, default="", help_text="A fault to inject.", max_length=20
            ),
        ),
    ]
