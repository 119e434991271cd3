"""Compressed requests, both intact and damaged, and the choice of a response's compression.

Every model returns its input, so a response shows what was inflated.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import pathlib
import zlib
from collections.abc import Iterator

from cases import CRASH, Case, fp32, infer_path

JSON = json.dumps(fp32([1.5, -2.0])).encode()
BINARY = json.dumps(
    {
        "inputs": [
            {
                "name": "INPUT0",
                "datatype": "FP32",
                "shape": [1, 2],
                "parameters": {"binary_data_size": 8},
            }
        ]
    }
).encode()
TENSOR = b"\x00\x00\x80?\x00\x00\x00@"


def write_models(root: pathlib.Path) -> None:
    """An identity model."""
    (root / "identity_fp32" / "1").mkdir(parents=True)
    (root / "identity_fp32" / "config.pbtxt").write_text(
        'backend: "identity"\nmax_batch_size: 8\n'
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
    )


def infer(name: str, body: bytes, *headers: tuple[str, str], model: str = "identity_fp32") -> Case:
    """An inference request."""
    return Case(name, "POST", infer_path(model), headers, body)


def raw_deflate(data: bytes) -> bytes:
    """A deflate stream without a header or checksum."""
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(data) + deflater.flush()


def sized(length: int) -> bytes:
    """A request whose JSON has this length."""
    return JSON + b" " * (length - len(JSON))


GZIPPED, DEFLATED = gzip.compress(JSON, mtime=0), zlib.compress(JSON)

#: What a client calls the coding of a body, and the body.
BODIES: dict[str, tuple[str, bytes]] = {
    "gzip": ("gzip", GZIPPED),
    "deflate": ("deflate", DEFLATED),
    "identity": ("identity", JSON),
    "an empty coding": ("", JSON),
    "zlib called gzip": ("gzip", DEFLATED),
    "gzip called deflate": ("deflate", GZIPPED),
    "deflate without a header": ("deflate", raw_deflate(JSON)),
    "plain JSON called gzip": ("gzip", JSON),
    "gzip called identity": ("identity", GZIPPED),
    "GZIP in capitals": ("GZIP", GZIPPED),
    "x-gzip": ("x-gzip", GZIPPED),
    "br": ("br", JSON),
    "two codings": ("gzip, deflate", zlib.compress(GZIPPED)),
    "gzip with spaces": (" gzip ", GZIPPED),
    "an empty body called gzip": ("gzip", b""),
    "an empty body called deflate": ("deflate", b""),
    "nothing, compressed": ("gzip", gzip.compress(b"", mtime=0)),
    "one byte": ("gzip", GZIPPED[:1]),
    "half a header": ("gzip", GZIPPED[:5]),
    "a header alone": ("gzip", GZIPPED[:10]),
    "truncated in the data": ("gzip", GZIPPED[:40]),
    "truncated in the checksum": ("gzip", GZIPPED[:-6]),
    "deflate truncated in the checksum": ("deflate", DEFLATED[:-2]),
    "a wrong checksum": ("gzip", GZIPPED[:-8] + b"abcd" + GZIPPED[-4:]),
    "a wrong length": ("gzip", GZIPPED[:-4] + b"abcd"),
    "deflate with a wrong checksum": ("deflate", DEFLATED[:-4] + b"abcd"),
    "garbage in the data": ("gzip", GZIPPED[:20] + b"\xff" * 20 + GZIPPED[40:]),
    "garbage behind the end": ("gzip", GZIPPED + b"garbage"),
    "zeros behind the end": ("gzip", GZIPPED + bytes(100)),
    "two members": ("gzip", GZIPPED + GZIPPED),
    "JSON in two members": (
        "gzip",
        gzip.compress(JSON[:20], mtime=0) + gzip.compress(JSON[20:], mtime=0),
    ),
    "compressed twice": ("gzip", gzip.compress(GZIPPED, mtime=0)),
    "a preset dictionary": ("deflate", b"\x78\xbb\x00\x00\x00\x01" + raw_deflate(JSON)),
    "a window larger than allowed": ("deflate", b"\x88\x1c" + DEFLATED[2:]),
    "2 MiB of spaces": ("gzip", gzip.compress(sized(1 << 21), mtime=0)),
    "2 MiB of spaces, truncated": ("gzip", gzip.compress(sized(1 << 21), mtime=0)[:-100]),
    "exactly a buffer": ("deflate", zlib.compress(sized(1 << 20))),
    "JSON that is wrong": ("gzip", gzip.compress(b'{"inputs": [', mtime=0)),
    "a long header": ("gzip", b"\x1f\x8b\x08\x1e" + GZIPPED[4:10] + b"\x03\0abcname\0text\0" ),
}


#: Triton executes what was inflated before the damage, be it nothing or all of it.
DAMAGED = [
    "deflate without a header",
    "plain JSON called gzip",
    "one byte",
    "half a header",
    "a header alone",
    "a wrong checksum",
    "a wrong length",
    "deflate with a wrong checksum",
    "a preset dictionary",
    "a window larger than allowed",
    "a long header",
]

#: What is inflated is not JSON.
NO_JSON = [
    "gzip called identity",
    "truncated in the data",
    "garbage in the data",
    "JSON in two members",
    "compressed twice",
    "JSON that is wrong",
]


def bodies() -> Iterator[Case]:
    """The bodies above, and other kinds of compressed requests."""
    for name, (coding, body) in BODIES.items():
        case = infer(f"body: {name}", body, ("Content-Encoding", coding))
        if name in DAMAGED:
            yield dataclasses.replace(case, ours="damaged requests are refused", ours_status=400)
        elif name in NO_JSON:
            yield case
        elif coding != coding.strip():
            yield dataclasses.replace(case, ours=SPACES, ours_status=200)
        else:
            yield case
    length = ("Inference-Header-Content-Length", str(len(BINARY)))
    for name, text in {
        "binary tensors": BINARY + TENSOR,
        "binary tensors that are too short": BINARY + TENSOR[:6],
        "JSON shorter than the header says": BINARY[:60],
    }.items():
        yield infer(
            f"body: {name}", gzip.compress(text, mtime=0), ("Content-Encoding", "gzip"), length
        )
    raw = ("Inference-Header-Content-Length", "0")
    yield infer(
        "body: raw", gzip.compress(TENSOR, mtime=0), ("Content-Encoding", "gzip"), raw
    )
    yield infer(
        "body: unknown model", GZIPPED, ("Content-Encoding", "gzip"), model="nope"
    )
    yield infer(
        "body: unknown model, unknown coding", GZIPPED, ("Content-Encoding", "br"), model="nope"
    )
    for path in ["/v2/repository/index", "/v2/repository/models/identity_fp32/load"]:
        for coding in ["gzip", "br"]:
            yield Case(
                f"{path} as {coding}", "POST", path, (("Content-Encoding", coding),),
                gzip.compress(b"{}", mtime=0),
            )


#: HTTP counts spaces and tabs around a header's value as no part of it; for Triton they are.
SPACES = "spaces around a value are none of it"

#: Values of the header `Accept-Encoding`.
ACCEPTED = [
    "gzip", "deflate", "identity", "br", "*", "", "GZIP", "gzip ", " gzip", "gzip,deflate",
    "deflate,gzip", "gzip, deflate, br", "deflate, gzip;q=1.0, *;q=0.5", "br;q=1.0, gzip;q=0.8",
    "gzip;q=0.5,deflate;q=0.6", "gzip;q=0.5, deflate;q=0.5", "deflate;q=0.5, gzip;q=0.5",
    "identity;q=0.5, gzip;q=0.4", "identity;q=0.4, gzip;q=0.5", "identity, gzip",
    "gzip;q=0", "gzip;q=-1", "gzip;q=0.0001", "gzip;q=",
    "gzip;q=x", "gzip;q=0.5x", "gzip;q= 0.5", "gzip; q=0.5", "gzip ;q=0.5", "gzip;Q=0.5",
    ";q=1", ",", ",,gzip", "gzip;q=0.5;q=0.1", 
    "gzip;q=.5", "gzip;q=5", "gzip;q=0.5, deflate;q=5", "gzip;q=inf",
    "deflate, gzip;q=inf", "gzip;q=infinity", "gzip;q=nan", "gzip;q=-nan, deflate;q=0.1",
    "gzip;q=0x1", "deflate, gzip;q=0x1p1", "deflate, gzip;q=0x1.8", "gzip;q=0x", "gzip;q=0x.p1",
    "deflate;q=0.5, gzip;q=0x.8p-1", "gzip;q=1e", "deflate;q=0.9, gzip;q=1e+", "gzip;q=+1",
    "gzip;q=\t1", "gzip\t",
    "gzip;q=\"1\"", "gzip;level=1", "gzip;level=1;q=1", "gzip;q=1;level=1", "\tgzip",
    "x;q=1, gzip;q=0.1", "deflate;q=infx, gzip;q=infinit", "gzip;q=.", "gzip;q=1_0", "gzip;q=1,5",
    "gzip;q=0x1p-1074", "gzip;q=nan(x)",
]  # fmt: skip

#: Weights that no double can hold. They are ignored in releases that survive them.
OUT_OF_RANGE = [
    "gzip;q=1e9999",
    "gzip;q=1e-9999",
    "gzip;q=1e9999, deflate;q=0.1",
    "gzip;q=1e400,deflate",
    "gzip;q=1e-310",
    "gzip;q=1e-320",
    "gzip;q=4.9406564584124654e-324",
    "gzip;q=0x1p-1075",
    "gzip;q=0x1p1024",
]


def responses() -> Iterator[Case]:
    """The encodings that the client accepts in both kinds of responses, and in errors."""
    for accepted in ACCEPTED:
        case = infer(f"accept: {accepted!r}", JSON, ("Accept-Encoding", accepted))
        is_padded = accepted.strip(" ") != accepted.strip() or accepted.endswith(" ")
        yield dataclasses.replace(case, ours=SPACES, ours_status=200) if is_padded else case
    for accepted in OUT_OF_RANGE:
        case = infer(f"accept: {accepted!r}", JSON, ("Accept-Encoding", accepted))
        yield dataclasses.replace(case, ours=CRASH, ours_status=200)
    yield infer("accept: gzip, then deflate", JSON, ("Accept-Encoding", "gzip"),
                ("Accept-Encoding", "deflate"))  # fmt: skip
    length = ("Inference-Header-Content-Length", str(len(BINARY)))
    for coding in ["gzip", "deflate"]:
        accepts = ("Accept-Encoding", coding)
        request = json.loads(BINARY) | {
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]
        }
        text = json.dumps(request).encode()
        length = ("Inference-Header-Content-Length", str(len(text)))
        yield infer(f"accept {coding}: binary outputs", text + TENSOR, length, accepts)
        error = infer(f"accept {coding}: an error", b"{}", accepts)
        yield error
        yield infer(f"accept {coding}: an unknown model", JSON, accepts, model="nope")
        yield infer(f"both ways: {coding}", GZIPPED, ("Content-Encoding", "gzip"), accepts)
        for path in ["/v2", "/v2/models/identity_fp32/config"]:
            yield Case(f"accept {coding}: {path}", "GET", path, (accepts,))


def compression_cases() -> list[Case]:
    """All of them."""
    return [*bodies(), *responses()]
