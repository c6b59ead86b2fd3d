"""On PostgreSQL a written row costs less of what guards it; the rules are the same.

A check is read anew, from its text, by each statement that writes: those of a task's row were a
fifth of a checkpoint. One function has them all now, which a session compiles once, and the check
calls it. And a checkpoint no longer looks for the task that its output and events belong to: it has
just written that task's row. What keeps a task with a history from being deleted is a trigger.
SQLite does both at once and keeps what it has, and so do the models, by which forms are validated.
"""

from django.apps.registry import Apps
from django.db import migrations, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from ledger.schema import LOCK_SECONDS, ValidateCheck, lock_tables

RULES = """
CREATE OR REPLACE FUNCTION longwatch_task_is_sound(t longwatch_task) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  broken text;
BEGIN
  IF (t.status = 'running') <> (t.lease_until IS NOT NULL)
    OR (t.lease_owner = '') <> (t.lease_until IS NULL)
  THEN broken := 'longwatch_task_lease_iff_running';
  ELSIF t.status <> ALL (CASE WHEN t.finished_at IS NULL
    THEN '{paused,queued,running,scheduled,waiting}'::text[]
    ELSE '{cancelled,completed,dead,failed}'::text[] END)
  THEN broken := 'longwatch_task_finished_iff';
  ELSIF (t.wall_left IS NULL) <> (t.status = ANY ('{queued,running,scheduled}'::text[])
      AND t.status_reason <> ALL ('{not_before,sleep}'::text[]))
    OR (t.wall_left IS NULL) <> (t.wall_until IS NOT NULL)
  THEN broken := 'longwatch_task_wall_iff';
  ELSIF least(t.fence, t.used_units, t.used_tokens_in, t.used_tokens_out, t.used_cost,
    t.limit_units, t.limit_tokens, t.limit_cost, t.reserved_tokens, t.reserved_cost, t.event_seq,
    t.revision, t.beat, least(t.attempts, t.reclaims, t.releases, t.repair_count, t.max_repairs,
      t.step_index, t.turn, t.total_steps, t.children_open, t.round - t.repair_count,
      100 - abs(t.priority))) < 0
  THEN broken := 'longwatch_task_counters';
  ELSE RETURN true;
  END IF;
  RAISE check_violation USING CONSTRAINT = broken, TABLE = 'longwatch_task',
    MESSAGE = format('task %s would break the rule %s', t.id, broken), DETAIL = format(
      'status %s, reason %s, lease of %s until %s, finished at %s, wall time until %s or left %s',
      t.status, t.status_reason, t.lease_owner, t.lease_until, t.finished_at, t.wall_until,
      t.wall_left);
END $$
"""

LEFT_BEHIND = """
CREATE OR REPLACE FUNCTION longwatch_task_has_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM longwatch_task WHERE id = OLD.id)
    AND (EXISTS (SELECT FROM longwatch_step_output WHERE task_id = OLD.id)
      OR EXISTS (SELECT FROM longwatch_event WHERE task_id = OLD.id))
  THEN
    RAISE foreign_key_violation USING TABLE = 'longwatch_task',
      CONSTRAINT = 'longwatch_task_has_history',
      MESSAGE = format('task %s still has outputs or events', OLD.id);
  END IF;
  RETURN NULL;
END $$
"""

TRIGGER = """
CREATE CONSTRAINT TRIGGER longwatch_task_has_history AFTER DELETE OR UPDATE OF id
ON longwatch_task DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
EXECUTE FUNCTION longwatch_task_has_history()
"""

CHECKS = "lease_iff_running", "finished_iff", "wall_iff", "counters", "sound"

SOUND = "CHECK (longwatch_task_is_sound(longwatch_task))"

FOREIGN = """SELECT conrelid::regclass::text, conname FROM pg_constraint
WHERE contype = 'f' AND confrelid = 'longwatch_task'::regclass
  AND conrelid IN ('longwatch_step_output'::regclass, 'longwatch_event'::regclass)"""


def change_guards(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """All of it at once, so it can be repeated; `longwatch_task_sound` reads no row yet."""
    connection = editor.connection
    if connection.vendor != "postgresql":
        return
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        tables = ["longwatch_task", "longwatch_step_output", "longwatch_event"]
        lock_tables(connection, tables, [], LOCK_SECONDS)
        cursor.execute(RULES)
        cursor.execute(LEFT_BEHIND)
        parts = [f"DROP CONSTRAINT IF EXISTS longwatch_task_{name}" for name in CHECKS]
        parts.append(f"ADD CONSTRAINT longwatch_task_sound {SOUND} NOT VALID")
        cursor.execute(f"ALTER TABLE longwatch_task {', '.join(parts)}")
        cursor.execute(FOREIGN)
        for table, name in cursor.fetchall():
            cursor.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
        cursor.execute("DROP TRIGGER IF EXISTS longwatch_task_has_history ON longwatch_task")
        cursor.execute(TRIGGER)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("longwatch_ledger", "0033_short_checks"),
    ]

    operations = [
        migrations.RunPython(change_guards),
        ValidateCheck("longwatch_task", "longwatch_task_sound"),
    ]
