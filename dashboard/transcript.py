"""A transcript as its page shows it: each turn's parts in order, calls with what came of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from dashboard import shown, words
from dashboard.diffs import compare_texts
from dashboard.templatetags.longwatch import write_json
from ledger import transcripts
from ledger.circles import find_circles
from ledger.turns import KEY, shorten_turn

FRAME = "A person who watches this task says:\n\n"
"""What ledger.agents puts before a message."""

SHOWN = 4_000
"""Characters of one text; the rest is in the unit's output, which has a page of its own."""

LONG, LINES = 500, 8
"""A text with more characters, or lines, is folded."""

FIRST = 110
"""Characters of a folded text that stand on its line."""

OUTCOMES = {
    "success": words.Look("Returned", "ok", "is-ok"),
    "failed": words.Look("Failed", "fail", "is-fail"),
    "retried": words.Look("Refused by the tool", "fail", "is-fail"),
    "denied": words.Look("Denied", "cancel", "is-idle"),
    "interrupted": words.Look("Interrupted", "lost", "is-stall"),
}
DECISIONS = {
    "ask": words.Look("Asks people", "wait", "is-wait"),
    "approved": words.Look("Approved", "ok", "is-ok"),
    "deny": words.Look("Denied by a rule", "cancel", "is-idle"),
}
PLAIN = {"text": "", "thinking": "Thinking", "compaction": "Summary of what came before",
         "system-prompt": "Instructions", "retry-feedback": "Complaint to the model",
         "retry-prompt": "Complaint to the model"}  # fmt: skip
"""Parts that are a text, and what they are called."""


def show_turns(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each turn with its `entries`, in the order in which they were said."""
    actors = {
        one["decided_by"] for turn in turns
        for asked in turn["asked"].values() for one in asked if one["decided_by"]
    } | {str(one.get("by")) for turn in turns for one in turn["heard"]}  # fmt: skip
    called = shown.name_actors(actors) if actors else {}
    children = {
        (str(turn["session"]), str(one.get("id"))): one
        for turn in turns
        for one in turn["children"]
    }
    return [_show_turn(turn, called, children) for turn in turns]


MESSAGES = {
    "pending": words.Look("Told at the next turn", "sched", "is-idle"),
    "taken": words.Look("Being told", "run", "is-run"),
    "untold": words.Look("Never told: the task had ended", "fail", "is-fail"),
}
"""Messages that are shown apart, for they stand in no turn."""


def show_messages(task_id: UUID, status: str) -> list[dict[str, Any]]:
    """Those that no stored turn holds, the oldest first."""
    told = transcripts.list_messages(task_id, status=status)
    found = [one for one in told if one["state"] in MESSAGES]
    called = shown.name_actors({one["by"] for one in found}) if found else {}
    return [one | {"look": MESSAGES[one["state"]], "by": called[one["by"]]} for one in found[::-1]]


def find_circle(turns: list[dict[str, Any]]) -> dict[str, Any] | None:
    """`{tool, args, times, failed}` of the call that the last of these turns (newest first)
    repeats. None when it goes on."""
    live = [(one["turn"], one["messages"]) for one in turns[::-1] if not one["superseded"]]
    if not live or not (found := find_circles(live)):
        return None
    one = found[0]
    args = clip(_write_args(one.args))["first"]
    return {"tool": one.tool, "args": args, "times": one.times, "failed": one.failed}


def _show_turn(
    turn: dict[str, Any], called: Mapping[str, str], children: Mapping[Any, dict[str, Any]]
) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    seen: list[Any] = []
    texts = {FRAME + str(one.get("text")) for one in turn["heard"]}
    for message in turn["messages"]:
        parts = message.get("parts")
        for part in parts if isinstance(parts, list) else ():
            entry = _show_part(_leave_out(part, texts))
            if entry["kind"] in {"call", "result"}:
                child = children.get((str(turn["session"]), entry["id"]))
                entry["child"] = _show_child(turn, child, entry["id"])
            if entry["kind"] == "call":
                entry |= _show_decision(turn, entry["id"], called)
                calls[entry["id"]] = entry
            elif entry["kind"] == "prompt":
                if entry["body"]["text"]:
                    entries.append(entry)
                entries += [_show_heard(one, called) for one in turn["heard"] if one not in seen]
                seen += turn["heard"]
                continue
            elif entry["kind"] == "result" and entry["id"] in calls:
                calls[entry["id"]]["result"] = entry
                continue
            elif entry["kind"] == "result":
                entry |= _show_decision(turn, entry["id"], called)
            entries.append(entry)
    more = [("more", name, clip(_write(value))) for name, value in turn["more"].items() if value]
    return turn | {
        "entries": entries,
        "more": [{"name": name.replace("_", " "), "body": body} for _, name, body in more],
        "opens": turn["turn"] == turn["began"],
        "compaction": _show_compaction(turn["compaction"]),
        "took": turn["finished_at"] - turn["started_at"],
    }


def _show_child(
    turn: dict[str, Any], child: dict[str, Any] | None, call_id: str
) -> dict[str, Any] | None:
    """The task that a call came to; `waits` before that."""
    if child is None:
        waits = any(one.get("id") == call_id and "child" in one for one in turn["open"])
        return {"waits": True} if waits and not turn["superseded"] else None
    look = words.LOOKS.get(str(child.get("status")))
    return {"task": child["task"], "workflow": str(child.get("workflow")), "look": look}


def _show_compaction(told: dict[str, Any] | None) -> dict[str, Any] | None:
    """Which turns are no longer sent, and where they are kept."""
    if not told:
        return None
    turns = told.get("turns")
    known = isinstance(turns, list) and len(turns) == 2
    text = told.get("text")
    return {
        "turns": turns if known else None,
        "name": str(told.get("name") or "artifact"),
        "artifact": transcripts.read_key(told.get("artifact")),
        "body": clip(text) | {"long": True} if isinstance(text, str) else None,
    }


def _leave_out(part: Any, texts: set[str]) -> dict[str, Any]:
    """A part without the messages of people, which are shown with who sent them."""
    if not isinstance(part, dict):
        return {"content": part}
    content = part.get("content")
    if part.get("part_kind") != "user-prompt" or not texts:
        return part
    if isinstance(content, list):
        return part | {
            "content": [one for one in content if not isinstance(one, str) or one not in texts]
        }
    return part | {"content": ""} if isinstance(content, str) and content in texts else part


def _show_heard(one: dict[str, Any], called: Mapping[str, str]) -> dict[str, Any]:
    by = called.get(str(one.get("by"))) or "a person"
    return {"kind": "heard", "name": f"{by} says", "body": clip(str(one.get("text")))}


def _show_part(part: dict[str, Any]) -> dict[str, Any]:
    """One part by its kind; of a kind that nobody here knows, its JSON."""
    kind = str(part.get("part_kind", ""))
    content = part.get("content")
    if kind in PLAIN:
        return {"kind": kind, "name": PLAIN[kind], "body": clip(_write(content))}
    if kind == "user-prompt":
        return {"kind": "prompt", "name": "To the model", "body": clip(_write_content(content))}
    if kind in {"tool-call", "builtin-tool-call"}:
        args = _write_args(part.get("args"))
        return {
            "kind": "call", "tool": str(part.get("tool_name")), "result": None,
            "change": _show_change(part),
            "id": str(part.get("tool_call_id")), "body": clip(args),
            "short": len(args) <= FIRST and "\n" not in args,
        }  # fmt: skip
    if kind in {"tool-return", "builtin-tool-return"}:
        outcome = str(part.get("outcome") or "success")
        return {
            "kind": "result", "tool": str(part.get("tool_name")),
            "id": str(part.get("tool_call_id")), "body": clip(_write(content)),
            "look": OUTCOMES.get(outcome) or words.Look(outcome, "idle", "is-idle"),
        }  # fmt: skip
    if kind == "file":
        return {"kind": "file", "name": "File", "body": clip(_write(content))}
    return {"kind": "other", "name": kind or "Unknown part", "body": clip(_write(part))}


EDITS = {"edit_file": ("old", "new"), "write_file": ("", "text")}
"""Tools that change a file: their arguments with the text before and after."""


def _show_change(part: dict[str, Any]) -> dict[str, Any] | None:
    """What a call would change in a file, line by line; None for any other call."""
    args = part.get("args")
    if isinstance(args, str):
        try:
            args = json.loads(args)
        except ValueError:
            return None
    names = EDITS.get(str(part.get("tool_name")))
    if names is None or not isinstance(args, dict):
        return None
    before, after = (args.get(name, "") if name else "" for name in names)
    whole = isinstance(before, str) and isinstance(after, str) and len(before + after) <= SHOWN
    lines = compare_texts(before, after) if whole else ()
    return {"path": str(args.get("path")), "lines": lines} if lines else None


def tell_turn(output: Any) -> dict[str, Any] | None:
    """What an agent's unit said and called, in few words; None for any other output."""
    told = shorten_turn(output)
    if told is output:
        return None
    short = told[KEY]
    texts = [one for one in short.get("said", ()) if isinstance(one, str) and one]
    said = "\n\n".join([*texts, *([str(short["summary"])] if short.get("summary") else [])])
    return {"said": clip(said), "called": [clip(one)["first"] for one in short.get("called", ())]}


def _show_decision(turn: dict[str, Any], call_id: str, called: Mapping[str, str]) -> dict[str, Any]:
    """What was decided of a call, by a rule or by whom."""
    notes = [one for one in turn["calls"] if one.get("id") == call_id]
    note = notes[-1] if notes else {}
    asked = []
    for one in turn["asked"].get(call_id, ()):
        changed = one["values"] is not None and one["values"] != one["proposal"]
        asked.append(one | {
            "by": called.get(one["decided_by"], ""),
            "changed": clip(_write_short(one["values"])) if changed else None,
        })  # fmt: skip
    return {
        "decision": None if asked else DECISIONS.get(str(note.get("decision"))),
        "reason": str(note.get("reason") or ""),
        "asked": asked,
    }


def clip(text: str) -> dict[str, Any]:
    """A text within bounds: `{text, cut, long, first}`; `first` stands for a long one."""
    flat = " ".join(text[: 4 * FIRST].split())
    return {
        "text": text[:SHOWN],
        "cut": max(0, len(text) - SHOWN),
        "long": len(text) > LONG or text.count("\n") >= LINES,
        "first": f"{flat[:FIRST]}…" if len(flat) > FIRST else flat,
    }


def _write_args(args: Any) -> str:
    """A call's arguments; what the model wrote that is no JSON stays as it is."""
    if isinstance(args, str):
        try:
            args = json.loads(args)
        except ValueError:
            return str(args)
    return "" if args in (None, {}) else _write_short(args)


def _write_short(value: Any) -> str:
    """JSON on one line where it has room there."""
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) <= FIRST else write_json(value)


def _write_content(content: Any) -> str:
    """What a person or a tool gave: texts, and what is none by name."""
    if isinstance(content, list):
        return "\n\n".join(_write(one) for one in content)
    return _write(content)


def _write(value: Any) -> str:
    """Any content as text; bytes are named, never shown."""
    if value is None:
        return ""
    named = _name_bytes(value)
    return named if isinstance(named, str) else _write_short(named)


def _name_bytes(value: Any) -> Any:
    """`value` with each file in it as `[image/png, 21 KB]`, and each address as a text."""
    if isinstance(value, list):
        return [_name_bytes(one) for one in value]
    if not isinstance(value, dict):
        return value
    kind = str(value.get("kind", ""))
    if kind == "binary" and isinstance(value.get("data"), str):
        return f"[{value.get('media_type')}, {len(value['data']) * 3 // 4:,} bytes]"
    if kind.endswith("-url") and isinstance(value.get("url"), str):
        return f"[{kind.removesuffix('-url')} at {value['url']}]"
    return {name: _name_bytes(one) for name, one in value.items()}
