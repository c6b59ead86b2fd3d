"""The four roles as groups, so that people can be put into them without a shell."""

from typing import Any

from django.db import migrations

ROLES = ("viewer", "approver", "operator", "admin")


def make_groups(apps: Any, schema_editor: Any) -> None:
    groups = apps.get_model("auth", "Group").objects.using(schema_editor.connection.alias)
    for name in ROLES:
        groups.get_or_create(name=name)


class Migration(migrations.Migration):
    dependencies = [
        ("longwatch_ledger", "0001_initial"),
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    # Backwards they stay: people may be in them, and the project may use them for its own ends.
    operations = [migrations.RunPython(make_groups, migrations.RunPython.noop)]
