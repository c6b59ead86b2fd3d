import django.db.models.deletion
from django.db import migrations, models

import ledger.ids


class Migration(migrations.Migration):
    dependencies = [
        ("longwatch_ledger", "0021_preferences"),
    ]

    operations = [
        migrations.CreateModel(
            name="BulkOperation",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=ledger.ids.make_id,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("action", models.CharField(max_length=20)),
                ("arguments", models.JSONField(default=dict)),
                ("reason", models.TextField(blank=True, default="")),
                ("selection", models.JSONField()),
                ("actor", models.CharField(max_length=200)),
                ("idempotency_key", models.CharField(blank=True, max_length=200, null=True)),
                ("body_digest", models.CharField(max_length=64)),
                ("status", models.CharField(default="running", max_length=10)),
                ("total", models.IntegerField()),
                ("stopped_by", models.CharField(blank=True, default="", max_length=200)),
                ("created_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={
                "db_table": "longwatch_bulk_operation",
                "ordering": ("-created_at", "-id"),
                "indexes": [
                    models.Index(
                        condition=models.Q(("status__in", ("running", "stopping"))),
                        fields=["id"],
                        name="longwatch_bulk_open",
                    ),
                    models.Index(fields=["created_at", "id"], name="longwatch_bulk_created"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("finished_at__isnull", True),
                                ("status__in", ("running", "stopping")),
                            ),
                            models.Q(
                                ("finished_at__isnull", False), ("status__in", ("done", "stopped"))
                            ),
                            _connector="OR",
                        ),
                        name="longwatch_bulk_finished_iff",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("idempotency_key__isnull", False)),
                        fields=("actor", "idempotency_key"),
                        name="longwatch_bulk_key",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BulkItem",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("task", models.UUIDField()),
                ("revision_seen", models.BigIntegerField(default=0)),
                ("status_seen", models.CharField(blank=True, default="", max_length=16)),
                ("approval", models.UUIDField(blank=True, null=True)),
                ("digest", models.CharField(blank=True, default="", max_length=64)),
                ("outcome", models.CharField(default="pending", max_length=10)),
                ("why", models.TextField(blank=True, default="")),
                ("done_at", models.DateTimeField(blank=True, null=True)),
                (
                    "operation",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="items",
                        to="longwatch_ledger.bulkoperation",
                    ),
                ),
            ],
            options={
                "db_table": "longwatch_bulk_item",
                "ordering": ("id",),
                "indexes": [
                    models.Index(
                        fields=["operation", "outcome", "id"], name="longwatch_bulk_outcome"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("outcome__in", ("pending", "done", "refused", "skipped", "stopped"))
                        ),
                        name="longwatch_bulk_outcome_known",
                    ),
                    models.UniqueConstraint(
                        fields=("operation", "task"), name="longwatch_bulk_task"
                    ),
                ],
            },
        ),
    ]
