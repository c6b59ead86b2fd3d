from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def begin_here(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """What happened before is not added up: it would be a jump in every rate."""
    tally = apps.get_model("longwatch_ledger", "Tally")
    for source in ("StepOutput", "Event", "Spend"):
        rows = apps.get_model("longwatch_ledger", source).objects
        last = rows.order_by("-pk").values_list("pk", flat=True).first()
        tally.objects.create(name="cursor", detail=source, value=last or 0)


class Migration(migrations.Migration):
    dependencies = [
        ("longwatch_ledger", "0029_concurrency_keys"),
    ]

    operations = [
        migrations.CreateModel(
            name="Tally",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=20)),
                ("workflow", models.CharField(blank=True, default="", max_length=100)),
                ("detail", models.CharField(blank=True, default="", max_length=40)),
                ("value", models.BigIntegerField()),
            ],
            options={
                "db_table": "longwatch_tally",
                "ordering": ("name", "workflow", "detail"),
            },
        ),
        migrations.AddConstraint(
            model_name="tally",
            constraint=models.UniqueConstraint(
                fields=("name", "workflow", "detail"), name="longwatch_tally_once"
            ),
        ),
        migrations.RunPython(begin_here, migrations.RunPython.noop),
    ]
