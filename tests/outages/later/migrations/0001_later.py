"""As a later release may change the ledger's busiest table; it stops half-way where it is told."""

import os
import time

from django.db import migrations


def pause(apps, schema_editor):
    halt = os.environ.get("LATER_HALT")
    if halt:
        open(halt, "w").close()
        time.sleep(120)


class Migration(migrations.Migration):
    dependencies = [("longwatch_ledger", "0004_audit_target")]
    operations = [
        migrations.RunSQL(
            "ALTER TABLE longwatch_task ADD COLUMN later varchar(20) NOT NULL DEFAULT ''",
            "ALTER TABLE longwatch_task DROP COLUMN later",
        ),
        migrations.RunPython(pause, migrations.RunPython.noop),
        migrations.RunSQL(
            "CREATE INDEX later_index ON longwatch_task (later)", "DROP INDEX later_index"
        ),
    ]
