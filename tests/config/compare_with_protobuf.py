"""Reads configurations with Galatea and with protocol buffers' own parser.

Usage: compare_with_protobuf.py [--program PATH] [PATH ...]

Every PATH is a configuration, or a directory in which every *.pbtxt file is read. By
default, it reads the corpus of the crate `config`: the valid files, and the malformed texts,
which both parsers must report as malformed. Both must read equal messages, and the JSON form
must be the one that protocol buffers print, except that 64-bit integers are numbers. The
exit status is 1 if the two disagree anywhere.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tritonclient.grpc import model_config_pb2

REPOSITORY = Path(__file__).resolve().parents[2]
CORPUS = REPOSITORY / "crates" / "config" / "tests" / "corpus"

# Malformed texts that protocol buffers' Python parser accepts, and the reason why Galatea
# doesn't, by the name of the case.
STRICTER: dict[str, str] = {
    "enumeration by an unknown number": "the number means nothing to any server",
    "scalar given twice, first as its default": "what is written twice is a mistake",
    "an escape that does not exist": "the C++ reader refuses it, Python keeps the backslash",
}

INTEGERS_64 = {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}

# Triton prints these as protocol buffers do, in quotes.
QUOTED = {
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    "inference.ModelSequenceBatching.InitialState.dims",
}


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, help="the built example read_configs")
    parser.add_argument("paths", nargs="*", type=Path)
    return parser.parse_args()


def files_of(paths: list[Path]) -> dict[str, Path]:
    """Every configuration, by the name under which it is reported."""
    found: dict[str, Path] = {}
    for path in paths:
        for file in sorted(path.rglob("*.pbtxt")) if path.is_dir() else [path]:
            found[str(file)] = file
    return found


def malformed_cases(folder: Path) -> dict[str, Path]:
    """The texts of the malformed cases, written to files, by the case's name."""
    found: dict[str, Path] = {}
    for collection in sorted(CORPUS.glob("syntax*.cases")):
        for part in collection.read_text(encoding="utf-8").split("==== ")[1:]:
            name, _, rest = part.partition("\n")
            text, _, _ = rest.partition("\n----\n")
            file = folder / f"{len(found)}.pbtxt"
            file.write_text(text, encoding="utf-8", newline="")
            found[name] = file
    return found


def read_with_galatea(program: Path | None, files: list[Path]) -> list[dict]:
    """Galatea's result for each file."""
    command = [str(program)] if program else ["cargo", "run", "-q", "-p", "galatea-config"]
    if not program:
        command += ["--example", "read_configs", "--"]
    command += [str(file.resolve()) for file in files]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def read_with_protobuf(file: Path) -> Message | str:
    """The message, or the first error."""
    message = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(file.read_bytes().decode(), message)
    except (text_format.ParseError, UnicodeDecodeError, ValueError) as error:
        return str(error) or type(error).__name__
    return message


def with_numbers(message: Message, printed: dict) -> dict:
    """The printed form, with 64-bit integers as numbers instead of strings."""
    for field in message.DESCRIPTOR.fields:
        if field.name not in printed:
            continue
        value = printed[field.name]
        if field.message_type and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name["value"]
            if entry.message_type:
                inner = getattr(message, field.name)
                keys = {str(key): key for key in inner}
                for key in value:
                    value[key] = with_numbers(inner[keys[key]], value[key])
        elif field.message_type and isinstance(value, list):
            inner = getattr(message, field.name)
            printed[field.name] = [with_numbers(m, v) for m, v in zip(inner, value)]
        elif field.message_type:
            printed[field.name] = with_numbers(getattr(message, field.name), value)
        elif field.cpp_type in INTEGERS_64 and field.full_name not in QUOTED:
            many = isinstance(value, list)
            printed[field.name] = [int(one) for one in value] if many else int(value)
    return printed


def same(one: object, other: object) -> bool:
    """Compares JSON values, in which numbers may be written as 1 or 1.0."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-7)
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def difference(name: str, ours: dict, theirs: Message | str) -> str | None:
    """The difference between the two parsers' results."""
    if "errors" in ours:
        if isinstance(theirs, str):
            return "both refuse it, so it is not stricter" if name in STRICTER else None
        if name in STRICTER:
            return None
        return f"only Galatea refuses it: {ours['errors']}"
    if isinstance(theirs, str):
        return f"only protocol buffers refuse it: {theirs}"
    message = model_config_pb2.ModelConfig()
    message.ParseFromString(bytes.fromhex(ours["protobuf"]))
    # Compares text, because NaN differs from itself with ==.
    if text_format.MessageToString(message) != text_format.MessageToString(theirs):
        return f"read as\n{message}\ninstead of\n{theirs}"
    printed = json_format.MessageToDict(
        theirs, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    expected = with_numbers(theirs, printed)
    if not same(json.loads(ours["json"]), expected):
        return f"printed as\n{ours['json']}\ninstead of\n{json.dumps(expected)}"
    return None


def main() -> int:
    """Reads, compares and reports."""
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        if options.paths:
            files = files_of(options.paths)
            malformed = 0
        else:
            cases = malformed_cases(Path(folder))
            malformed = len(cases)
            files = files_of([CORPUS / "valid"]) | cases
        results = read_with_galatea(options.program, list(files.values()))
        assert len(results) == len(files), "Galatea left files out"
        wrong = 0
        refused = 0
        for (name, file), ours in zip(files.items(), results):
            refused += "errors" in ours
            problem = difference(name, ours, read_with_protobuf(file))
            if problem:
                wrong += 1
                print(f"{name}: {problem}\n")
    print(f"{len(files)} configurations, {refused} refused, {wrong} disagreements")
    return 1 if wrong or not files or refused < malformed else 0


if __name__ == "__main__":
    sys.exit(main())
