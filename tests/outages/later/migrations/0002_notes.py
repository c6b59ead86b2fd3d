"""A table with an index and a key, which Django makes last of all."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("later", "0001_later")]
    operations = [
        migrations.CreateModel(
            "Note",
            [
                ("id", models.AutoField(primary_key=True)),
                ("text", models.TextField(db_index=True)),
                ("task", models.ForeignKey("longwatch_ledger.task", models.CASCADE)),
            ],
            options={"indexes": [models.Index(fields=["text", "task"], name="later_note_both")]},
        )
    ]
