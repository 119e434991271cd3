"""Tests our headers in C and C++ compilers, and the values and functions that they declare."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = sorted((ROOT / "include/triton/core").glob("*.h"))
# Enumerations whose values the library can name, with the function that does so.
NAMED = {
    "TRITONSERVER_DataType": "TRITONSERVER_DataTypeString",
    "TRITONSERVER_MemoryType": "TRITONSERVER_MemoryTypeString",
    "TRITONSERVER_ParameterType": "TRITONSERVER_ParameterTypeString",
    "TRITONSERVER_InstanceGroupKind": "TRITONSERVER_InstanceGroupKindString",
    "TRITONSERVER_InferenceTraceLevel": "TRITONSERVER_InferenceTraceLevelString",
    "TRITONSERVER_InferenceTraceActivity": "TRITONSERVER_InferenceTraceActivityString",
}


def enumerations() -> dict[str, list[str]]:
    """The names of each enumeration's values."""
    text = "".join(path.read_text() for path in HEADERS)
    found = re.findall(r"typedef enum (\w+) \{(.*?)\}", text, re.DOTALL)
    return {name: re.findall(r"(\w+) = ", body) for name, body in found}


def functions(text: str, specifier: str) -> list[str]:
    """The functions that a header declares in this way."""
    return re.findall(rf"^TRITON\w+_{specifier} [^(]*?(TRITON\w+)\(", text, re.MULTILINE)


def source_with_all_names() -> str:
    """A program that includes each header twice and uses every declared name."""
    lines = [f'#include "triton/core/{path.name}"' for path in HEADERS] * 2
    lines += ["#include <stdio.h>", "typedef void (*any)(void);", "int main(void) {"]
    lines.append("  any all[] = {")
    for path in HEADERS:
        lines += [f"    (any)&{name}," for name in functions(path.read_text(), "DECLSPEC")]
    lines.append("  };")
    lines.append('  printf("%zu\\n", sizeof(all) / sizeof(all[0]));')
    for name, values in enumerations().items():
        for value in values:
            lines.append(f"  {{ {name} one = {value}; printf(\"{value} %d\\n\", (int)one); }}")
    # A loaded library provides these functions.
    for path in HEADERS:
        for name in functions(path.read_text(), "ISPEC"):
            lines.append(f"  printf(\"%d\\n\", (int)sizeof(&{name}));")
    return "\n".join([*lines, "  return 0;", "}"]) + "\n"


@pytest.mark.parametrize(
    ("compiler", "suffix", "options"),
    [
        ("cc", ".c", ["-std=c11"]),
        ("c++", ".cc", ["-std=c++11"]),
        ("c++", ".cc", ["-std=c++17"]),
    ],
)
# row: BAPI-01
def test_everything_compiles_and_links(
    compile: Callable[..., pathlib.Path],
    library: pathlib.Path,
    tmp_path: pathlib.Path,
    compiler: str,
    suffix: str,
    options: list[str],
) -> None:
    source = (tmp_path / "everything").with_suffix(suffix)
    source.write_text(source_with_all_names())
    built = compile(compiler, source, *options, library, f"-Wl,-rpath,{library.parent}")
    printed = subprocess.run([built], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines()[0] == "281"


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
@pytest.mark.parametrize(("compiler", "suffix"), [("cc", ".c"), ("c++", ".cc")])
def test_each_header_stands_alone(
    compile: Callable[..., pathlib.Path],
    tmp_path: pathlib.Path,
    compiler: str,
    suffix: str,
    header: pathlib.Path,
) -> None:
    source = (tmp_path / "alone").with_suffix(suffix)
    source.write_text(f'#include "triton/core/{header.name}"\nint main(void) {{ return 0; }}\n')
    compile(compiler, source)


def triton_library() -> pathlib.Path | None:
    """Triton's library, if it is installed and requested."""
    packages = os.environ.get("GALATEA_TRITON_PACKAGES")
    if not packages:
        return None
    found = list(pathlib.Path(packages).glob("nvidia_pytriton.libs/libtritonserver*.so*"))
    assert found, f"no libtritonserver in {packages}/nvidia_pytriton.libs"
    return found[0]


NAMES = """
#include <dlfcn.h>
#include <stdio.h>
#include "triton/core/tritonserver.h"
int main(int argc, char** argv) {
  void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (library == NULL) { fprintf(stderr, "%s\\n", dlerror()); return 1; }
"""


@pytest.mark.skipif(
    triton_library() is None, reason="needs Triton's packages in GALATEA_TRITON_PACKAGES"
)
# row: INST-02 SAPI-02
def test_enumeration_values_match_triton(
    compile: Callable[..., pathlib.Path], library: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The same program, compiled against our headers, runs on both libraries."""
    every = enumerations()
    lines = [NAMES]
    for enumeration, function in NAMED.items():
        declared = f"const char* (*name)({enumeration}) = (const char* (*)({enumeration}))"
        lines.append(f'  {{ {declared}dlsym(library, "{function}");')
        for value in every[enumeration]:
            lines.append(f"    printf(\"{value} %s\\n\", name({value}));")
        lines.append("  }")
    lines.append("""
  { TRITONSERVER_Error* (*make)(TRITONSERVER_Error_Code, const char*) =
      (TRITONSERVER_Error* (*)(TRITONSERVER_Error_Code, const char*))
          dlsym(library, "TRITONSERVER_ErrorNew");
    const char* (*name)(TRITONSERVER_Error*) =
      (const char* (*)(TRITONSERVER_Error*))dlsym(library, "TRITONSERVER_ErrorCodeString");
    uint32_t (*size)(TRITONSERVER_DataType) =
      (uint32_t (*)(TRITONSERVER_DataType))dlsym(library, "TRITONSERVER_DataTypeByteSize");""")
    for value in every["TRITONSERVER_Error_Code"]:
        lines.append(f"    printf(\"{value} %s\\n\", name(make({value}, \"\")));")
    for value in every["TRITONSERVER_DataType"]:
        lines.append(f"    printf(\"{value} %u\\n\", size({value}));")
    lines.append("  }")
    for prefix in ("SERVER", "BACKEND", "CACHE", "REPOAGENT"):
        lines.append(f"""  {{ uint32_t major = 0, minor = 0;
    TRITONSERVER_Error* (*version)(uint32_t*, uint32_t*) =
      (TRITONSERVER_Error* (*)(uint32_t*, uint32_t*))
          dlsym(library, "TRITON{prefix}_ApiVersion");
    if (version(&major, &minor) == NULL) printf("{prefix} %u.%u\\n", major, minor); }}""")
    source = tmp_path / "names.c"
    source.write_text("\n".join([*lines, "  return 0;", "}"]) + "\n")
    # ISO C doesn't support functions from dlsym, but POSIX does.
    built = compile("cc", source, "-Wno-pedantic", "-ldl")
    triton = triton_library()
    assert triton is not None
    environment = {**os.environ, "LD_LIBRARY_PATH": str(triton.parent)}
    outputs = [
        subprocess.run([built, path], check=True, capture_output=True, text=True, env=environment)
        for path in (library, triton)
    ]
    ours, theirs = (response.stdout.splitlines() for response in outputs)
    assert len(ours) > 60
    # Triton has the code, but release 2.51 has no text for it.
    unnamed = "TRITONSERVER_ERROR_CANCELLED <invalid code>"
    theirs = ["TRITONSERVER_ERROR_CANCELLED Cancelled" if one == unnamed else one for one in theirs]
    assert ours == theirs


def test_triton_exports_what_we_export(library: pathlib.Path) -> None:
    triton = triton_library()
    if triton is None:
        pytest.skip("needs Triton's packages in GALATEA_TRITON_PACKAGES")
    ours, theirs = exported(library), exported(triton)
    assert ours - theirs == set()
    # None of its headers declares these two functions.
    undeclared = {"TRITONCACHE_CacheEntryNew", "TRITONCACHE_CacheEntryDelete"}
    more = {name for name in theirs - ours if name.startswith("TRITON")}
    assert more - undeclared == set()


def exported(path: pathlib.Path) -> set[str]:
    """The names that a library or program exports."""
    command = ["nm", "--dynamic", "--defined-only", path]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in listed.splitlines()}


def declared() -> set[str]:
    """The functions that the headers declare for the server."""
    return {name for path in HEADERS for name in functions(path.read_text(), "DECLSPEC")}


# row: BAPI-01 SAPI-01 SAPI-11
def test_the_library_exports_the_headers_functions_and_nothing_else(library: pathlib.Path) -> None:
    assert exported(library) == declared()


def test_the_program_exports_the_functions_too(program: pathlib.Path) -> None:
    """Backend libraries look for them there."""
    assert declared() - exported(program) == set()
