"""The rules of a task's row in fewer parts still: a list is one constant, `round` is as large as
`repair_count` anyway, and the least of all counters is compared once."""

import django.db.models.expressions
import django.db.models.functions.comparison
import django.db.models.functions.math
import django.db.models.lookups
from django.db import migrations, models

from ledger.models.oneof import OneOf
from ledger.schema import RewriteChecks


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("longwatch_ledger", "0032_beside_writers"),
    ]

    operations = [
        RewriteChecks(
            state_operations=[
                migrations.RemoveConstraint("task", "longwatch_task_finished_iff"),
                migrations.RemoveConstraint("task", "longwatch_task_wall_iff"),
                migrations.RemoveConstraint("task", "longwatch_task_counters"),
                migrations.AddConstraint(
                    model_name="task",
                    constraint=models.CheckConstraint(
                        condition=models.Q(
                            OneOf(
                                "status",
                                ["paused", "queued", "running", "scheduled", "waiting"],
                                models.Q(("finished_at__isnull", True)),
                                ["cancelled", "completed", "dead", "failed"],
                            )
                        ),
                        name="longwatch_task_finished_iff",
                    ),
                ),
                migrations.AddConstraint(
                    model_name="task",
                    constraint=models.CheckConstraint(
                        condition=models.Q(
                            django.db.models.lookups.Exact(
                                django.db.models.lookups.IsNull(models.F("wall_left"), True),
                                models.Q(
                                    OneOf("status", ["queued", "running", "scheduled"]),
                                    models.Q(
                                        OneOf("status_reason", ["not_before", "sleep"]),
                                        _negated=True,
                                    ),
                                ),
                            ),
                            django.db.models.lookups.Exact(
                                django.db.models.lookups.IsNull(models.F("wall_left"), False),
                                django.db.models.lookups.IsNull(models.F("wall_until"), True),
                            ),
                        ),
                        name="longwatch_task_wall_iff",
                    ),
                ),
                migrations.AddConstraint(
                    model_name="task",
                    constraint=models.CheckConstraint(
                        condition=models.Q(
                            django.db.models.lookups.GreaterThanOrEqual(
                                django.db.models.functions.comparison.Least(
                                    "fence",
                                    "used_units",
                                    "used_tokens_in",
                                    "used_tokens_out",
                                    "used_cost",
                                    "limit_units",
                                    "limit_tokens",
                                    "limit_cost",
                                    "reserved_tokens",
                                    "reserved_cost",
                                    "event_seq",
                                    "revision",
                                    "beat",
                                    django.db.models.functions.comparison.Least(
                                        "attempts",
                                        "reclaims",
                                        "releases",
                                        "repair_count",
                                        "max_repairs",
                                        "step_index",
                                        "turn",
                                        "total_steps",
                                        "children_open",
                                        django.db.models.expressions.CombinedExpression(
                                            models.F("round"), "-", models.F("repair_count")
                                        ),
                                        django.db.models.expressions.CombinedExpression(
                                            models.Value(100),
                                            "-",
                                            django.db.models.functions.math.Abs("priority"),
                                        ),
                                    ),
                                ),
                                0,
                            ),
                        ),
                        name="longwatch_task_counters",
                    ),
                ),
            ],
        ),
    ]
