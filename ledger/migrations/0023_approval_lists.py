import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("longwatch_ledger", "0022_bulk"),
    ]

    operations = [
        migrations.CreateModel(
            name="ApprovalLook",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("by", models.CharField(max_length=200)),
                ("at", models.DateTimeField()),
                (
                    "approval",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="looks",
                        to="longwatch_ledger.approval",
                    ),
                ),
            ],
            options={
                "db_table": "longwatch_approval_look",
            },
        ),
        migrations.AddConstraint(
            model_name="approvallook",
            constraint=models.UniqueConstraint(
                fields=("approval", "by"), name="longwatch_look_once"
            ),
        ),
    ]
