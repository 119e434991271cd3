"""Writes docs/configuration_reference.md, which lists every field of config.pbtxt.

The fields and their types come from the protocol's file. Their meanings, and the defaults that the
server fills in, come from configuration_reference.toml. The settings that have no effect come from
the table in crates/config/src/without_effect.rs.

    python tests/configuration_reference.py
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration_reference.md"
PROTOCOL = ROOT / "crates" / "protocol" / "proto" / "model_config.proto"
WITHOUT_EFFECT = ROOT / "crates" / "config" / "src" / "without_effect.rs"
MEANINGS = ROOT / "tests" / "configuration_reference.toml"

FIELD = re.compile(r"(repeated )?(map<(\w+), ([\w.]+)>|[\w.]+) (\w+) = \d+;")
#: Settings that only some models read.
DEPENDS = (
    "secondary_devices",
    "op_library_filename",
    "use_growable_memory",
    "eager_batching",
    "gather_kernel_buffer_threshold",
    "priority",
    "cuda",
)
#: Settings that only models of TensorRT may have.
ONLY_TENSORRT = (
    ("ModelInput", "is_shape_tensor"),
    ("ModelOutput", "is_shape_tensor"),
    ("ModelInput", "is_non_linear_format_io"),
    ("ModelOutput", "is_non_linear_format_io"),
    ("ModelInstanceGroup", "profile"),
)
DEFAULTS = {"bool": "false", "string": "empty", "float": "0", "double": "0"}


@dataclasses.dataclass
class Field:
    """A field of a message."""

    name: str
    type: str
    is_repeated: bool
    #: The type of a map's keys.
    key: str
    #: The oneof that it belongs to.
    choice: str


@dataclasses.dataclass
class Message:
    """A message with its dotted name."""

    name: str
    about: str
    fields: list[Field] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Schema:
    """Messages and enumerations by their dotted names."""

    messages: dict[str, Message]
    enums: dict[str, list[str]]

    def resolve(self, name: str, scope: str) -> str:
        """The dotted name of a type that is named within a message."""
        parts = scope.split(".")
        for count in range(len(parts), -1, -1):
            candidate = ".".join([*parts[:count], name])
            if candidate in self.messages or candidate in self.enums:
                return candidate
        return name


def schema() -> Schema:
    """The definitions in the protocol's file."""
    found = Schema({}, {})
    scope: list[tuple[str, str]] = []
    about: list[str] = []
    for line in map(str.strip, PROTOCOL.read_text().splitlines()):
        names = [name for kind, name in scope if kind != "oneof"]
        begin = re.fullmatch(r"(message|enum|oneof) (\w+) \{(\})?", line)
        field = FIELD.fullmatch(line)
        if begin:
            name = ".".join([*names, begin[2]])
            if begin[1] == "message":
                found.messages[name] = Message(name, " ".join(about))
            elif begin[1] == "enum":
                found.enums[name] = []
            if not begin[3]:
                scope.append((begin[1], begin[2]))
        elif line == "}":
            scope.pop()
        elif field and scope and scope[-1][0] != "enum":
            choice = scope[-1][1] if scope[-1][0] == "oneof" else ""
            name = field[4] or field[2]
            one = Field(field[5], name, bool(field[1]), field[3] or "", choice)
            found.messages[".".join(names)].fields.append(one)
        elif scope and scope[-1][0] == "enum" and (value := re.match(r"(\w+) = \d+;", line)):
            found.enums[".".join(names)].append(value[1])
        about = [*about, line[3:]] if line.startswith("// ") else []
    return found


def limits(known: Schema) -> dict[tuple[str, str], str]:
    """The settings that are refused or have no effect, by message and field."""
    text = WITHOUT_EFFECT.read_text()
    found: dict[tuple[str, str], str] = {}
    ignored = r'IgnoredSetting \{\s*name: "([\w.]+)",\s*reason: "([^"]+)"'
    for path, reason in re.findall(ignored, text):
        *parents, last = path.split(".")
        at = "ModelConfig"
        for parent in parents:
            (field,) = (one for one in known.messages[at].fields if one.name == parent)
            at = known.resolve(field.type, at)
        if path != "instance_group":  # that is about groups that are all passive
            when = "Elsewhere no effect" if last in DEPENDS else "No effect"
            found[at, last] = f"**{when}:** {reason}."
    for message, field in ONLY_TENSORRT:
        found[message, field] = "**Refused** with other platforms than `tensorrt_plan`."
    return found


def meanings() -> dict[tuple[str, str], tuple[str, str]]:
    """The meaning and the default of each field."""
    return {
        (message, field): (says, "") if isinstance(says, str) else (says[0], says[1])
        for message, fields in tomllib.loads(MEANINGS.read_text()).items()
        for field, says in fields.items()
    }


def mistakes() -> list[str]:
    """Fields without a meaning, and meanings without a field."""
    known = {
        (message.name, field.name)
        for message in schema().messages.values()
        for field in message.fields
    }
    return sorted(".".join(one) for one in known ^ meanings().keys())


def order(known: Schema) -> list[Message]:
    """The messages in the order in which a reader encounters them."""
    found: list[str] = []

    def add(name: str) -> None:
        if name in found or name not in known.messages:
            return
        found.append(name)
        for field in known.messages[name].fields:
            add(known.resolve(field.type, name))

    add("ModelConfig")
    return [known.messages[name] for name in found if known.messages[name].fields]


def page() -> str:
    """The text of docs/configuration_reference.md."""
    known = schema()
    lines = [
        "# Reference of config.pbtxt",
        "",
        "<!-- Written by tests/configuration_reference.py. -->",
        "",
        "Every field of a model's configuration, with its type, its default and its meaning. The file",
        "is in the protocol buffers text format; [model_configuration.md](model_configuration.md),",
        "[schedulers.md](schedulers.md) and [ensembles.md](ensembles.md) explain the settings with",
        "examples. A configuration may set only one of the fields that are marked *one of*. A refused",
        "setting keeps the model from loading; a setting without effect causes a line in the log.",
        "`GET /v2/models/NAME/config` shows the completed configuration.",
    ]
    says, limited = meanings(), limits(known)
    for message in order(known):
        lines += ["", f"## {message.name}", ""]
        lines += [message.about, ""] if message.about else []
        lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
        for field in message.fields:
            meaning, default = says.get((message.name, field.name), ("", ""))
            shown = default or type_default(field, message.name, known)
            limit = limited.get((message.name, field.name), "")
            kind = shown_type(field, message.name, known)
            text = f"{meaning} {limit}".strip()
            lines.append(f"| `{field.name}` | {kind} | {shown} | {text} |")
    lines += ["", "## Enumerations", "", "| type | values |", "|---|---|"]
    for name, values in known.enums.items():
        lines.append(f"| `{name}` | {', '.join(f'`{value}`' for value in values)} |")
    return "\n".join(lines) + "\n"


def shown_type(field: Field, scope: str, known: Schema) -> str:
    """The type with a link to its section."""
    name = known.resolve(field.type, scope)
    text = f"`{name}`"
    if name in known.messages and known.messages[name].fields:
        text = f"[`{name}`](#{name.lower().replace('.', '')})"
    elif name in known.enums:
        text = f"[`{name}`](#enumerations)"
    if field.key:
        text = f"map of `{field.key}` to {text}"
    text = f"list of {text}" if field.is_repeated else text
    return f"{text}, one of `{field.choice}`" if field.choice else text


def type_default(field: Field, scope: str, known: Schema) -> str:
    """The type's default."""
    name = known.resolve(field.type, scope)
    if field.is_repeated or field.key:
        return "empty"
    if field.choice or name in known.messages:
        return "none"
    if name in known.enums:
        return f"`{known.enums[name][0]}`"
    return DEFAULTS.get(name, "0")


if __name__ == "__main__":
    PAGE.write_text(page())
    wrong = mistakes()
    sys.exit("\n".join(wrong) if wrong else 0)
