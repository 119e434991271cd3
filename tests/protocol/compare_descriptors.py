# row: CFG-02
"""Compares this project's protocol descriptors with those of Triton's client.

Usage: compare_descriptors.py [DESCRIPTORS]

DESCRIPTORS is the file that `cargo run -p galatea-protocol --example dump_descriptors
FILE` writes; by default, this script runs that program. Everything that is transmitted is
compared: messages, fields by name, number, type and label, choices, enumerations, and
services. The exit status is 1 if anything differs.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = "inference"

# Items in Triton's sources that its published client doesn't have yet: the full names of
# fields, messages, values and methods that only ours may have.
NEWER_THAN_THE_CLIENT: set[str] = set()

Facts = dict[str, tuple]


def own_files(path: Path) -> list[descriptor_pb2.FileDescriptorProto]:
    """The package's files in a dumped descriptor set."""
    every = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
    return [file for file in every.file if file.package == PACKAGE]


def client_files() -> list[descriptor_pb2.FileDescriptorProto]:
    """The package's files in Triton's client."""
    files = []
    for module in (model_config_pb2, service_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        files.append(file)
    return files


def message_facts(message: descriptor_pb2.DescriptorProto, scope: str) -> Facts:
    """Everything about a message and its nested definitions, by full name."""
    name = f"{scope}.{message.name}"
    facts: Facts = {name: ("message", "map entry" if message.options.map_entry else "")}
    choices = [choice.name for choice in message.oneof_decl]
    for field in message.field:
        choice = choices[field.oneof_index] if field.HasField("oneof_index") else ""
        facts[f"{name}.{field.name}"] = (
            "field",
            field.number,
            field.Type.Name(field.type),
            field.Label.Name(field.label),
            field.type_name,
            f"choice {choice}",
            f"optional {field.proto3_optional}",
        )
    for enum in message.enum_type:
        facts |= enum_facts(enum, name)
    for nested in message.nested_type:
        facts |= message_facts(nested, name)
    return facts


def enum_facts(enum: descriptor_pb2.EnumDescriptorProto, scope: str) -> Facts:
    """The values of an enumeration, by full name."""
    name = f"{scope}.{enum.name}"
    facts: Facts = {name: ("enumeration",)}
    for value in enum.value:
        facts[f"{name}.{value.name}"] = ("value", value.number)
    return facts


def file_facts(files: list[descriptor_pb2.FileDescriptorProto]) -> Facts:
    """Everything in these files, by full name."""
    facts: Facts = {}
    for file in files:
        for message in file.message_type:
            facts |= message_facts(message, f".{file.package}")
        for enum in file.enum_type:
            facts |= enum_facts(enum, f".{file.package}")
        for service in file.service:
            name = f".{file.package}.{service.name}"
            facts[name] = ("service",)
            for method in service.method:
                facts[f"{name}.{method.name}"] = (
                    "method",
                    method.input_type,
                    method.output_type,
                    f"client streams {method.client_streaming}",
                    f"server streams {method.server_streaming}",
                )
    return facts


def order_facts(files: list[descriptor_pb2.FileDescriptorProto]) -> Facts:
    """The order in which fields are declared, which is their order in JSON."""

    def orders(message: descriptor_pb2.DescriptorProto, scope: str) -> Facts:
        name = f"{scope}.{message.name}"
        found: Facts = {f"{name} (order)": tuple(field.name for field in message.field)}
        for nested in message.nested_type:
            found |= orders(nested, name)
        return found

    facts: Facts = {}
    for file in files:
        for message in file.message_type:
            facts |= orders(message, f".{file.package}")
    return facts


def differences(ours: Facts, theirs: Facts) -> list[str]:
    """One line for each item that differs between the two sides."""
    lines = []
    for name in sorted(ours.keys() | theirs.keys()):
        if name in NEWER_THAN_THE_CLIENT and name not in theirs:
            continue
        if ours.get(name) != theirs.get(name):
            lines.append(f"{name}: ours {ours.get(name)}, Triton's {theirs.get(name)}")
    return lines


def main() -> int:
    """Compares and reports."""
    if len(sys.argv) > 1:
        own = own_files(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "descriptors.bin"
            command = ["cargo", "run", "-q", "-p", "galatea-protocol"]
            command += ["--example", "dump_descriptors", str(path)]
            subprocess.run(command, cwd=REPOSITORY, check=True)
            own = own_files(path)
    client = client_files()
    ours, theirs = file_facts(own), file_facts(client)
    lines = differences(ours, theirs) + differences(order_facts(own), order_facts(client))
    for line in lines:
        print(line)
    print(f"{len(ours)} descriptors compared with {len(theirs)}, {len(lines)} differ")
    return 1 if lines or not theirs else 0


if __name__ == "__main__":
    sys.exit(main())
