"""Print the docs that are made from the structs, or with --check say whether they are current.

docs/config.md from the document structs, docs/refresh.md from the refresh classes at the fields of
the effective config, configs/edge.schema.json from both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, inspect

from iop_edge.config.document import Document
from iop_edge.config.json_schema import default_values, json_schema
from iop_edge.config.reading.complaints import bounds_of
from iop_edge.config.reload_class import Reload
from iop_edge.config.resolving.built_in import BUILT_IN
from iop_edge.config.yaml12.emit import scalar
from iop_edge.refresh.reasons import reason_for
from iop_edge.refresh.shape import effective_shape, rows

ROOT = Path(__file__).resolve().parent.parent

CONFIG_INTRO = """# The config, key by key

Printed by `make docs` from the structs that decode a file; do not edit. A whole example is
[configs/edge.yaml](../configs/edge.yaml), and an editor that reads its first line completes and
checks every key. `iop-edge config check` finds everything that is wrong with a file at once.

- Every section and every key without “required” may be left out; `null` is the same as left out.
- Several `--config` files merge in order. Maps merge; `nodes`, `providers` and `models` merge by
  `id`, `adapters` by `key`, `model_routes` by `id`, `principal_tokens` by `token_ref`; other lists,
  header values and references to secrets are replaced whole. A `null` in a later file takes an
  earlier value away.
- `${NAME}` and `${NAME:-default}` expand from the edge's environment in values; the default also
  stands for a variable that is empty, and `$${` for a literal `${`. An unquoted value that is one
  whole reference takes its type after expansion, so a number is written `key: ${NAME}` on a line of
  its own; between `{}` or `[]` YAML wants a reference quoted, which makes it text.
- A secret is never written and never expanded into a file. A node token is `{env: NAME}`,
  `{file: PATH}` or `{sha256: HEX}`; a profile's `auth` value and headers that hold credentials
  (`authorization`, `proxy-authorization`, `cookie`, or any whose name holds key, token or secret)
  are `{env: NAME}` or `{file: PATH}`, read on the edge, or `{node_env: NAME}` or
  `{node_file: PATH}`, read on the node and never sent. A header's value is sent as it was read;
  for `Bearer …` use a profile's `auth`, which puts its `scheme` before it.
- Relative paths are relative to the directory the edge is started in.
- Scalars follow YAML 1.2's core schema: `on`, `no`, `12:30`, `0123` and dates are text.
- *live* and *restart* say when a changed value takes effect ([refresh.md](refresh.md)).
"""

REFRESH_INTRO = """# What a refresh may change

Printed by `make docs` from the refresh class that stands at each field; do not edit. A path not
listed by itself has the class of the nearest path above it. A change set that holds any restart
path applies nothing. `iop-edge config diff A B` and `iop-edge config refresh --dry-run` tell the
class of every change.
"""


def config_page() -> str:
    """docs/config.md."""
    reloads = {row.pattern: row.reload for row in rows(effective_shape())}
    parts = [CONFIG_INTRO]
    for pattern, cls in _sections():
        title = f"`{pattern}`" if pattern else "The root"
        summary = " ".join((cls.__doc__ or "").split())
        parts.append(f"## {title}\n\n{summary}\n\n{_table(pattern, cls, reloads)}")
    parts.append(_catalog())
    return "\n".join(parts)


def refresh_page() -> str:
    """docs/refresh.md."""
    live, restart = [], []
    for row in rows(effective_shape()):
        what = " (an entry added or removed)" if row.is_entry else ""
        if row.reload is Reload.LIVE:
            live.append(f"- `{row.pattern}`{what}")
        else:
            restart.append(f"| `{row.pattern}`{what} | {reason_for(row.pattern)} |")
    table = "\n".join(["| path | why |", "|---|---|", *restart])
    return (
        f"{REFRESH_INTRO}\n## Live: takes effect at the next dispatch\n\n"
        + "\n".join(live)
        + "\n\n"
        "Legacy `nodes[].providers[].max_queue` and `queue_timeout_ms` act through\n"
        "`provider_pool`, and only where that key is absent.\n\n"
        f"## Restart\n\n{table}\n\n"
        "A secret that changed behind an unchanged reference is a restart path too; it is shown\n"
        "without values.\n"
    )


def _sections() -> Iterator[tuple[str, type[Struct]]]:
    """Every struct once, at the first pattern it stands at, in the order of the file."""
    seen: set[type[Struct]] = set()
    yield from _walk("", Document, seen)


def _walk(
    pattern: str, cls: type[Struct], seen: set[type[Struct]]
) -> Iterator[tuple[str, type[Struct]]]:
    if cls in seen:
        return
    seen.add(cls)
    yield pattern, cls
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        path = f"{pattern}.{field.encode_name}" if pattern else field.encode_name
        for below, inner in _structs_in(field.type, path):
            yield from _walk(below, inner, seen)


def _structs_in(node: inspect.Type, path: str) -> Iterator[tuple[str, type[Struct]]]:
    match node:
        case inspect.Metadata():
            yield from _structs_in(node.type, path)
        case inspect.UnionType():
            for variant in node.types:
                yield from _structs_in(variant, path)
        case inspect.ListType():
            yield from _structs_in(node.item_type, f"{path}[]")
        case inspect.DictType():
            yield from _structs_in(node.value_type, f"{path}[]")
        case inspect.StructType():
            yield path, node.cls


def _table(pattern: str, cls: type[Struct], reloads: dict[str, Reload]) -> str:
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    defaults = default_values(cls)
    lines = ["| key | value | default | change | |", "|---|---|---|---|---|"]
    for field in info.fields:
        name = field.encode_name
        path = f"{pattern}.{name}" if pattern else name
        default = "required" if field.required else _default(defaults, name)
        lines.append(
            f"| `{name}` | {_kind(field.type)} | {default} | {_reload(path, reloads)} | "
            f"{_described(field.type)} |"
        )
    return "\n".join(lines) + "\n"


def _default(defaults: dict[str, object], name: str) -> str:
    return f"`{scalar(defaults[name])}`" if name in defaults else ""


def _described(node: inspect.Type) -> str:
    while isinstance(node, inspect.Metadata):
        text = (node.extra_json_schema or {}).get("description")
        if text:
            return str(text)
        node = node.type
    return ""


def _kind(node: inspect.Type) -> str:
    match node:
        case inspect.Metadata():
            return _kind(node.type)
        case inspect.UnionType():
            kinds = [_kind(one) for one in node.types if not isinstance(one, inspect.NoneType)]
            return " or ".join(sorted(kinds))
        case inspect.StructType():
            return "reference" if node.cls.__name__ == "SecretDocument" else "mapping"
        case inspect.ListType():
            return f"list of {_kind(node.item_type)}"
        case inspect.DictType():
            return f"map to {_kind(node.value_type)}"
        case inspect.LiteralType():
            return " \\| ".join(f"`{one}`" for one in node.values)
        case inspect.BoolType():
            return "boolean"
        case inspect.IntType() | inspect.FloatType():
            return bounds_of(node)
        case inspect.StrType():
            return "text"
        case _:
            return "anything"


def _reload(path: str, reloads: dict[str, Reload]) -> str:
    """The class of a path of the document: its own, else that of whatever it comes to."""
    if path in ("nodes[].providers[].max_queue", "nodes[].providers[].queue_timeout_ms"):
        return "live"
    found = {
        reload
        for pattern, reload in reloads.items()
        if pattern == path or pattern.startswith((f"{path}.", f"{path}[]"))
    }
    if len(found) == 1:
        return next(iter(found)).value
    return "" if found else "restart"


def _catalog() -> str:
    lines = [
        "## Built-in profiles",
        "",
        "An overlay in `protocol_profiles` names one of these, or another overlay, as its `base`.",
        "None of them has a base URL: an adapter names its own.",
        "",
        "| profile | driver | operations | capabilities | credential header |",
        "|---|---|---|---|---|",
    ]
    for name, profile in BUILT_IN.items():
        operations = ", ".join(f"{one} `{path}`" for one, path in profile.operations.items())
        header = f"`{profile.auth.header}: {profile.auth.scheme} …`".replace(":  …", ": …")
        lines.append(
            f"| `{name}` | `{profile.driver}` | {operations} | "
            f"{', '.join(sorted(profile.capabilities))} | {header} |"
        )
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Every generated file with its text."""
    return {
        ROOT / "docs" / "config.md": config_page(),
        ROOT / "docs" / "refresh.md": refresh_page(),
        ROOT / "configs" / "edge.schema.json": json.dumps(
            json_schema(), indent=1, ensure_ascii=False
        )
        + "\n",
    }


def main() -> None:
    stale = []
    for path, text in pages().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv:
            stale.append(str(path.relative_to(ROOT)))
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        raise SystemExit(f"not what the structs say: {', '.join(stale)} (run `make docs`)")


if __name__ == "__main__":
    main()
