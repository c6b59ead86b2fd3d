"""On PostgreSQL a written row costs less of what guards it; the rules are the same.

A check is read anew, from its text, by each statement that writes: those of a task's row were a
fifth of a checkpoint. Two short ones are left, for what a checkpoint and a heartbeat write: the
lease, and the counters that they count up. All others are a trigger's, which names the columns that
they are about, so that it does not run where none of them is written. And a checkpoint no longer
looks for the task that its output and events belong to: it has just written that task's row. What
keeps a task with a history from being deleted is a trigger as well.

SQLite looks at no rule of columns that are not written, so it keeps what it has, and so do the
models, by which forms are validated.
"""

from django.apps.registry import Apps
from django.db import migrations, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from ledger.schema import LOCK_SECONDS, ValidateCheck, lock_tables

COUNTED = """CHECK (least(fence, event_seq, used_units, revision, beat,
  least(step_index, turn, attempts, reclaims, releases)::bigint) >= 0)"""

RULES = """
CREATE OR REPLACE FUNCTION longwatch_task_rules() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken text;
BEGIN
  IF NEW.status <> ALL (CASE WHEN NEW.finished_at IS NULL
    THEN '{paused,queued,running,scheduled,waiting}'::text[]
    ELSE '{cancelled,completed,dead,failed}'::text[] END)
  THEN broken := 'longwatch_task_finished_iff';
  ELSIF (NEW.wall_left IS NULL) <> (NEW.status = ANY ('{queued,running,scheduled}'::text[])
      AND NEW.status_reason <> ALL ('{not_before,sleep}'::text[]))
    OR (NEW.wall_left IS NULL) <> (NEW.wall_until IS NOT NULL)
  THEN broken := 'longwatch_task_wall_iff';
  ELSIF least(NEW.used_tokens_in, NEW.used_tokens_out, NEW.used_cost, NEW.limit_units,
    NEW.limit_tokens, NEW.limit_cost, NEW.reserved_tokens, NEW.reserved_cost,
    least(NEW.repair_count, NEW.max_repairs, NEW.total_steps, NEW.children_open,
      NEW.round - NEW.repair_count, 100 - abs(NEW.priority))) < 0
  THEN broken := 'longwatch_task_counters';
  ELSE RETURN NEW;
  END IF;
  RAISE check_violation USING TABLE = 'longwatch_task', CONSTRAINT = broken,
    MESSAGE = format('task %s would break the rule %s', NEW.id, broken), DETAIL = format(
      'Status %s, reason "%s", finished at %s, wall time until %s or left %s.', NEW.status,
      NEW.status_reason, NEW.finished_at, NEW.wall_until, NEW.wall_left);
END $$
"""

ON_WRITE = """
CREATE TRIGGER longwatch_task_rules BEFORE INSERT OR UPDATE OF status, status_reason, finished_at,
  wall_left, wall_until, used_tokens_in, used_tokens_out, used_cost, limit_units, limit_tokens,
  limit_cost, reserved_tokens, reserved_cost, repair_count, max_repairs, total_steps,
  children_open, round, priority
ON longwatch_task FOR EACH ROW EXECUTE FUNCTION longwatch_task_rules()
"""

HISTORY = """
CREATE OR REPLACE FUNCTION longwatch_task_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM longwatch_task WHERE id = OLD.id)
    AND (EXISTS (SELECT FROM longwatch_step_output WHERE task_id = OLD.id)
      OR EXISTS (SELECT FROM longwatch_event WHERE task_id = OLD.id))
  THEN
    RAISE foreign_key_violation USING TABLE = 'longwatch_task',
      CONSTRAINT = 'longwatch_task_history',
      MESSAGE = format('task %s still has outputs or events', OLD.id);
  END IF;
  RETURN NULL;
END $$
"""

ON_DELETE = """
CREATE CONSTRAINT TRIGGER longwatch_task_history AFTER DELETE OR UPDATE OF id
ON longwatch_task DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
EXECUTE FUNCTION longwatch_task_history()
"""

CHECKS = "finished_iff", "wall_iff", "counters"

TRIGGERS = "rules", "history"

FOREIGN = """SELECT conrelid::regclass::text, conname FROM pg_constraint
WHERE contype = 'f' AND confrelid = 'longwatch_task'::regclass
  AND conrelid IN ('longwatch_step_output'::regclass, 'longwatch_event'::regclass)"""


def change_guards(apps: Apps, editor: BaseDatabaseSchemaEditor) -> None:
    """All of it at once, and it can be repeated; the new check reads no row yet."""
    connection = editor.connection
    if connection.vendor != "postgresql":
        return
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        tables = ["longwatch_task", "longwatch_step_output", "longwatch_event"]
        lock_tables(connection, tables, [], LOCK_SECONDS)
        parts = [f"DROP CONSTRAINT IF EXISTS longwatch_task_{name}" for name in CHECKS]
        parts.append(f"ADD CONSTRAINT longwatch_task_counters {COUNTED} NOT VALID")
        cursor.execute(f"ALTER TABLE longwatch_task {', '.join(parts)}")
        for name in TRIGGERS:
            cursor.execute(f"DROP TRIGGER IF EXISTS longwatch_task_{name} ON longwatch_task")
        for text in (RULES, ON_WRITE, HISTORY, ON_DELETE):
            cursor.execute(text)
        cursor.execute(FOREIGN)
        for table, name in cursor.fetchall():
            cursor.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("longwatch_ledger", "0033_short_checks"),
    ]

    operations = [
        migrations.RunPython(change_guards),
        ValidateCheck("longwatch_task", "longwatch_task_counters"),
    ]
