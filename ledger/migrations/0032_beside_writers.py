"""What reads all of a table that the release before has filled: indexes and a check, made while
others write. Each can be repeated, so it may be killed anywhere."""

from django.db import migrations, models

from ledger.schema import AddIndexBeside, ValidateCheck


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("longwatch_ledger", "0031_retention"),
    ]

    operations = [
        ValidateCheck("longwatch_artifact", "longwatch_artifact_proof"),
        AddIndexBeside(
            model_name="approval",
            index=models.Index(
                condition=models.Q(("remind_at__isnull", False), ("status", "open")),
                fields=["remind_at"],
                name="longwatch_approval_remind",
            ),
        ),
        AddIndexBeside(
            model_name="auditentry",
            index=models.Index(fields=["actor", "id"], name="longwatch_audit_actor"),
        ),
        AddIndexBeside(
            model_name="auditentry",
            index=models.Index(fields=["action", "id"], name="longwatch_audit_action"),
        ),
        AddIndexBeside(
            model_name="approval",
            index=models.Index(
                condition=models.Q(("decided_at__isnull", False)),
                fields=["decided_at", "id"],
                name="longwatch_approval_decided",
            ),
        ),
        AddIndexBeside(
            model_name="approval",
            index=models.Index(
                condition=models.Q(("decided_at__isnull", False)),
                fields=["step", "decided_at"],
                name="longwatch_approval_step",
            ),
        ),
        AddIndexBeside(
            model_name="spend",
            index=models.Index(
                condition=models.Q(("lane", ""), _negated=True),
                fields=["lane", "at", "cost", "tokens_in", "tokens_out"],
                name="longwatch_spend_lane",
            ),
        ),
        AddIndexBeside(
            model_name="task",
            index=models.Index(fields=["submitted_by", "created_at"], name="longwatch_task_by"),
        ),
        AddIndexBeside(
            model_name="task",
            index=models.Index(
                condition=models.Q(
                    ("concurrency_key__isnull", False),
                    ("held_key__isnull", True),
                    ("status", "queued"),
                ),
                fields=["lane", "workflow", "workflow_version", "concurrency_key", "rank", "id"],
                name="longwatch_task_keyed",
            ),
        ),
        AddIndexBeside(
            model_name="task",
            index=models.Index(
                condition=models.Q(("held_key__isnull", False), ("status", "queued")),
                fields=["lane", "workflow", "workflow_version", "rank", "id"],
                name="longwatch_task_begun",
            ),
        ),
        AddIndexBeside(
            model_name="task",
            index=models.Index(
                condition=models.Q(("finished_at__isnull", True), ("held_key__isnull", False)),
                fields=["workflow", "held_key"],
                name="longwatch_task_holding",
            ),
        ),
    ]
