"""Two indexes of a task's row that hold less, for each change of a status is written to every index
that the row is in. And a small one, of those that wait for a budget that they share."""

from django.db import migrations, models

from ledger.schema import AddIndexBeside, RemoveIndexBeside


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("longwatch_ledger", "0034_cheaper_guards"),
    ]

    operations = [
        AddIndexBeside(
            model_name="task",
            index=models.Index(
                condition=models.Q(("lease_owner", ""), ("wall_until__isnull", False)),
                fields=["wall_until"],
                name="longwatch_task_overdue",
            ),
        ),
        AddIndexBeside(
            model_name="task",
            index=models.Index(
                condition=models.Q(("submitted_by", "system"), _negated=True),
                fields=["submitted_by", "created_at"],
                name="longwatch_task_mine",
            ),
        ),
        AddIndexBeside(
            model_name="task",
            index=models.Index(
                condition=models.Q(("status", "waiting"), ("status_reason", "budget")),
                fields=["priority"],
                name="longwatch_task_budget",
            ),
        ),
        RemoveIndexBeside(model_name="task", name="longwatch_task_wall"),
        RemoveIndexBeside(model_name="task", name="longwatch_task_by"),
    ]
