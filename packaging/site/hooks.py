"""Hooks of the documentation site: pages of the root, links that leave docs/, and the API reference."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import yaml
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]

# ROOT_PAGES are documents of the repository's root, with their pages.
ROOT_PAGES = {
    "README.md": "index.md",
    "SECURITY.md": "project/security.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "RATIONALE.md": "project/rationale.md",
    "CHANGELOG.md": "project/changelog.md",
}
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```.*?^```)", re.M | re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root and of the API."""
    for source, page in ROOT_PAGES.items():
        text = rewrite((ROOT / source).read_text(), source, page, config)
        files.append(File.generated(config, page, content=text))
    for page, text in api_pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite the links of pages of docs/ that lead out of it."""
    uri = page.file.src_uri
    if page.file.generated_by:
        return markdown
    return rewrite(markdown, "docs/" + uri, uri, config)


def rewrite(text: str, source: str, page: str, config: Any) -> str:
    """Rewrite relative links of source, a path in the repository, for page, a path on the site."""

    def link(m: re.Match[str]) -> str:
        target, _, anchor = m[2].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return m[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            raise SystemExit(f"{source} links to {target}, which does not exist")
        if path in ROOT_PAGES:
            to = ROOT_PAGES[path]
        elif path == "api/openapi/openapi.yaml":
            to = "reference/api.md"
        elif path.startswith("docs/") and (ROOT / path).is_file():
            to = path.removeprefix("docs/")
        else:
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"{m[1]}{config.extra['repository']}/{kind}/main/{path}{m[3]}"
        relative = posixpath.relpath(to, posixpath.dirname(page) or ".")
        return m[1] + relative + ("#" + anchor if anchor else "") + m[3]

    parts = FENCE.split(text)
    return "".join(p if p.startswith("```") else LINK.sub(link, p) for p in parts)


def api_pages() -> dict[str, str]:
    """Return the reference of the HTTP API: a page of operations and a page of types."""
    spec = yaml.safe_load((ROOT / "api/openapi/openapi.yaml").read_text())
    about = {t["name"]: t.get("description", "") for t in spec["tags"]}
    by_tag: dict[str, list[str]] = {name: [] for name in about}
    for path, item in spec["paths"].items():
        for method, operation in item.items():
            if method in ("get", "post", "put", "patch", "delete"):
                text = operation_text(spec, path, method, operation, item.get("parameters", []))
                by_tag.setdefault(operation["tags"][0], []).append(text)
    out = [
        "# HTTP API",
        "",
        spec["info"].get("description", ""),
        "The types are on [their own page](api-types.md).",
        "",
    ]
    for tag, operations in by_tag.items():
        out += [f"## {tag}", "", about.get(tag, ""), "", *operations]
    types = ["# Types of the HTTP API", ""]
    for name, schema in sorted(spec["components"]["schemas"].items()):
        types += [f"## {name}", "", schema.get("description", ""), "", *schema_text(schema), ""]
    return {"reference/api.md": "\n".join(out), "reference/api-types.md": "\n".join(types)}


def operation_text(spec: Any, path: str, method: str, o: Any, shared: list[Any]) -> str:
    """Return one operation as Markdown."""
    out = [
        f"### {o['operationId']}",
        "",
        f"`{method.upper()} {path}`",
        "",
        o.get("summary", "") + ".",
        "",
        o.get("description", ""),
    ]
    rows = []
    for p in [*shared, *o.get("parameters", [])]:
        if "$ref" in p:
            p = spec["components"]["parameters"][p["$ref"].rsplit("/", 1)[1]]
        need = ", required" if p.get("required") else ""
        rows.append(
            f"| `{p['name']}` | {p['in']}{need} | {kind(p.get('schema', {}))} "
            f"| {cell(p.get('description', ''))} |"
        )
    if rows:
        out += ["", "| parameter | in | type | description |", "|---|---|---|---|", *rows]
    for media, body in o.get("requestBody", {}).get("content", {}).items():
        out += ["", f"Request body: `{media}`, {kind(body.get('schema', {}))}."]
    answers = []
    for status, r in o.get("responses", {}).items():
        if "$ref" in r:
            r = spec["components"]["responses"][r["$ref"].rsplit("/", 1)[1]]
        bodies = ", ".join(
            f"`{media}` {kind(b.get('schema', {}))}" for media, b in r.get("content", {}).items()
        )
        answers.append(f"| {status} | {bodies} | {cell(r.get('description', ''))} |")
    return "\n".join([*out, "", "| status | body | description |", "|---|---|---|", *answers, ""])


def schema_text(s: Any) -> list[str]:
    """Return the properties or the values of a type."""
    if "enum" in s:
        return ["Values: " + ", ".join(f"`{v}`" for v in s["enum"]) + "."]
    rows: list[str] = []
    for part in [s, *s.get("allOf", [])]:
        if "$ref" in part:
            rows.append(f"| | {kind(part)} | its fields too |")
        required = part.get("required", [])
        for name, p in part.get("properties", {}).items():
            need = ", required" if name in required else ""
            rows.append(f"| `{name}` | {kind(p)}{need} | {cell(p.get('description', ''))} |")
    if not rows:
        return [f"Type: {kind(s)}."]
    return ["| field | type | description |", "|---|---|---|", *rows]


def kind(s: Any) -> str:
    """Return the type of a schema, with links to named types."""
    if "$ref" in s:
        name = s["$ref"].rsplit("/", 1)[1]
        return f"[{name}](api-types.md#{name.lower()})"
    if "allOf" in s:
        return " and ".join(kind(x) for x in s["allOf"])
    if "oneOf" in s:
        return " or ".join(kind(x) for x in s["oneOf"])
    if s.get("type") == "array":
        return f"list of {kind(s.get('items', {}))}"
    extra = s.get("additionalProperties")
    if isinstance(extra, dict):
        return f"map of {kind(extra)}"
    return str(s.get("format") or s.get("type") or "any")


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
