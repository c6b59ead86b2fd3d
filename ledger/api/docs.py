"""The docs page: every operation of the OpenAPI schema on a page of our own, without scripts.

The framework's page loads its viewer from a CDN, which neither our content policy nor a machine
without internet allows.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from ninja import NinjaAPI
from ninja.openapi.docs import DocsBase

METHODS = ("get", "post", "put", "patch", "delete")


class PlainDocs(DocsBase):
    """Operations by tag, with parameters, body and answers; schemas below, linked."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **kwargs: Any) -> HttpResponse:
        """The page."""
        schema: dict[str, Any] = api.get_openapi_schema(path_params=kwargs)
        operations = [
            _read_operation(method, path, item[method])
            for path, item in schema["paths"].items()
            for method in METHODS
            if method in item
        ]
        groups: dict[str, list[dict[str, Any]]] = {}
        for operation in operations:
            groups.setdefault(operation["tag"], []).append(operation)
        models = sorted(schema["components"]["schemas"].items())
        context = {
            "title": f"{api.title} {api.version}",
            "description": api.description,
            "schema_url": self.get_openapi_url(api, kwargs),
            "groups": groups,
            "models": [_read_model(name, model) for name, model in models],
        }
        return render(request, "longwatch/api_docs.html", context)


def _read_operation(method: str, path: str, spec: dict[str, Any]) -> dict[str, Any]:
    answers = [
        {"status": status, "models": _find_models(answer)}
        for status, answer in spec["responses"].items()
    ]
    return {
        "method": method.upper(),
        "path": path,
        "tag": (spec.get("tags") or ["other"])[0],
        "text": spec.get("description", ""),
        "parameters": [
            {"name": one["name"], "where": one["in"], "type": _name_type(one["schema"])}
            for one in spec.get("parameters", [])
        ],
        "body": _find_models(spec.get("requestBody", {})),
        "answers": answers,
    }


def _read_model(name: str, model: dict[str, Any]) -> dict[str, Any]:
    required = model.get("required", [])
    return {
        "name": name,
        "text": model.get("description", ""),
        "fields": [
            {
                "name": field,
                "type": _name_type(spec),
                "models": _find_models(spec),
                "required": field in required,
            }
            for field, spec in model.get("properties", {}).items()
        ],
    }


def _find_models(spec: Any) -> list[str]:
    """Names of the schemas that a part of the document refers to, in order, each once."""
    if isinstance(spec, list):
        found = [name for part in spec for name in _find_models(part)]
    elif isinstance(spec, dict):
        found = [name for part in spec.values() for name in _find_models(part)]
        if "$ref" in spec:
            found.append(str(spec["$ref"]).rsplit("/", 1)[-1])
    else:
        found = []
    return list(dict.fromkeys(found))


def _name_type(spec: dict[str, Any]) -> str:
    if options := spec.get("anyOf") or spec.get("oneOf"):
        return " or ".join(_name_type(option) for option in options)
    if "$ref" in spec:
        return str(spec["$ref"]).rsplit("/", 1)[-1]
    if "enum" in spec:
        return " | ".join(map(str, spec["enum"]))
    name = spec.get("format") or spec.get("type", "any JSON")
    return f"list of {_name_type(spec['items'])}" if name == "array" and "items" in spec else name
