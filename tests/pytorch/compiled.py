"""Creates compiled models and their expected results, for the tests of the backend `pytorch`.

    python tests/pytorch/compiled.py DIRECTORY [NAME...]

needs PyTorch and a C++ compiler. A compiled model is native code for this machine, so none is
committed. A run writes `NAME.pt2` and `NAME.json` for each model, which takes some seconds each.
Then run the tests with

    GALATEA_TEST_TORCH=.../torch/lib/libtorch_cpu.so GALATEA_TEST_TORCH_MODELS=DIRECTORY \
        cargo test -p galatea-backend-pytorch
"""

import pathlib
import sys

import torch
from torch import nn
from torch.export import Dim

import answers

BATCH = Dim("batch", min=1, max=1024)
LENGTH = Dim("length", min=1, max=512)


class Mlp(nn.Module):
    """A perceptron's layers, with a batch of any size."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


class Fixed(nn.Module):
    """A sum over fixed shapes."""

    def forward(self, x, y):
        return x @ y


class Types(nn.Module):
    """One result of each type."""

    def forward(self, a, b, c, d, e, f, g, h):
        return (a * 2, b / 2, c + 1, d - 1, e * 3, f + 2, g // 2, ~h)


class Bfloat(nn.Module):
    """16-bit numbers that Triton's backend doesn't accept."""

    def forward(self, x):
        return x * 2


class Nested(nn.Module):
    """Dictionaries, tuples and keywords on both sides."""

    def forward(self, head, options, *, first, second):
        return {
            "AAA": head + first,
            "ZZZ": head - second,
            "BBB": (head * 2, options["keyA"] + 1),
            "CCC": {"x": options["key2"] * first},
        }


class Lengths(nn.Module):
    """Two variable dimensions, which both inputs share."""

    def forward(self, x, y):
        return x * y + 1, x.sum(dim=1)


class Doubled(nn.Module):
    """An input with twice as many rows as the other."""

    def forward(self, x, y):
        return x.repeat(2, 1) + y


class Complex(nn.Module):
    def forward(self, x):
        return torch.view_as_real(x).sum(-1)


class Passed(nn.Module):
    """An output that is an input, one with a different element order, and one that occurs twice."""

    def forward(self, x):
        y = x + 1
        return x, y.transpose(1, 2), y, y


class Picture(nn.Module):
    """A convolution."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean(dim=(2, 3)))


class Words(nn.Module):
    """A transformer layer over tokens."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.head = nn.Linear(16, 4)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens)).mean(dim=1))


class Best(nn.Module):
    """Values and their positions."""

    def forward(self, x):
        values, positions = torch.topk(x, 2, dim=1)
        return [values, positions]


class Missing(nn.Module):
    """An output without a value, and a constant."""

    def __init__(self):
        super().__init__()
        self.register_buffer("constant", torch.tensor([1.0, 2.0]))

    def forward(self, x):
        return x + 1, None, self.constant


class Running(nn.Module):
    """A state that the caller keeps."""

    def forward(self, x, total):
        total = total + x
        return total * 10, total


class Scalar(nn.Module):
    """A result without dimensions."""

    def forward(self, x):
        return x.sum()


class Writing(nn.Module):
    """Writes to an input."""

    def forward(self, x):
        x.add_(1)
        return x * 2


class Counted(nn.Module):
    """An operation without a C interface."""

    def forward(self, x):
        return torch.bincount(x, minlength=5)


def tensor(kind, name, datatype, dims):
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: {list(dims)} }}\n'


def config(inputs, outputs, more=""):
    lines = [tensor("input", *one) for one in inputs]
    lines += [tensor("output", *one) for one in outputs]
    return 'platform: "torch_aoti"\n' + more + "".join(lines)


def models():
    """The models by name, with their module, samples, keywords, variable dimensions and
    configuration."""
    some = torch.arange
    f32 = torch.float32
    yield (
        "mlp", Mlp(), (torch.randn(2, 8),), {}, ({0: BATCH},),
        config([("ARGS[0]", "FP32", [8])], [("RESULT", "FP32", [3])], "max_batch_size: 16\n"),
        [((torch.randn(n, 8),), {}) for n in (1, 2, 5)],
    )
    yield (
        "fixed", Fixed(), (torch.randn(2, 3), torch.randn(3, 4)), {}, None,
        config(
            [("INPUT__0", "FP32", [2, 3]), ("INPUT__1", "FP32", [3, 4])],
            [("OUTPUT__0", "FP32", [2, 4])],
        ),
        [((torch.randn(2, 3), torch.randn(3, 4)), {})],
    )
    types = [
        ("FP16", torch.float16), ("FP64", torch.float64), ("INT8", torch.int8),
        ("INT16", torch.int16), ("INT32", torch.int32), ("INT64", torch.int64),
        ("UINT8", torch.uint8), ("BOOL", torch.bool),
    ]
    samples = tuple(some(4).to(kind) for _, kind in types)
    yield (
        "types", Types(), samples, {}, None,
        config(
            [(f"ARGS[{i}]", name, [4]) for i, (name, _) in enumerate(types)],
            [(f"RESULT[{i}]", name, [4]) for i, (name, _) in enumerate(types)],
        ),
        [(samples, {})],
    )
    yield (
        "bfloat", Bfloat(), (torch.randn(3, dtype=torch.bfloat16),), {}, None,
        config([("ARGS[0]", "BF16", [3])], [("RESULT", "BF16", [3])]),
        [((torch.tensor([1.0, -2.5, 0.125], dtype=torch.bfloat16),), {})],
    )
    two = lambda: torch.randn(2, 3)
    names = ["AAA", "ZZZ", "BBB[0]", "BBB[1]", "CCC[x]"]
    names = [name if "[" not in name else name.replace("[", "][", 1)[:-1] for name in names]
    nested = lambda: ((two(), {"keyA": two(), "key2": two()}), {"first": two(), "second": two()})
    arguments, keywords = nested()
    yield (
        "nested", Nested(), arguments, keywords, None,
        config(
            [
                ("KWARGS[second]", "FP32", [2, 3]), ("ARGS[0]", "FP32", [2, 3]),
                ("ARGS[1][key2]", "FP32", [2, 3]), ("ARGS[1][keyA]", "FP32", [2, 3]),
                ("KWARGSfirst", "FP32", [2, 3]),
            ],
            [(f"RESULT[{name}]", "FP32", [2, 3]) for name in names],
        ),
        [nested(), nested()],
    )
    pair = lambda b, n: ((torch.randn(b, n), torch.randn(b, n)), {})
    yield (
        "lengths", Lengths(), pair(2, 5)[0], {},
        ({0: BATCH, 1: LENGTH}, {0: BATCH, 1: LENGTH}),
        config(
            [("x", "FP32", [-1]), ("y", "FP32", [-1])],
            [("RESULT[0]", "FP32", [-1]), ("RESULT[1]", "FP32", [])],
            "max_batch_size: 8\n",
        ).replace('"x"', '"INPUT__0"').replace('"y"', '"INPUT__1"')
        .replace("dims: []", "dims: [1] reshape { }"),
        [pair(1, 7), pair(2, 7), pair(3, 7)],
    )
    yield (
        "passed", Passed(), (torch.randn(2, 3, 4),), {}, ({0: BATCH},),
        config(
            [("ARGS[0]", "FP32", [3, 4])],
            [
                ("RESULT[0]", "FP32", [3, 4]), ("RESULT[1]", "FP32", [4, 3]),
                ("RESULT[2]", "FP32", [3, 4]), ("RESULT[3]", "FP32", [3, 4]),
            ],
            "max_batch_size: 8\n",
        ),
        [((torch.randn(n, 3, 4),), {}) for n in (1, 3)],
    )
    yield (
        "picture", Picture(), (torch.randn(2, 3, 8, 8),), {}, ({0: BATCH},),
        config([("ARGS[0]", "FP32", [3, 8, 8])], [("RESULT", "FP32", [2])], "max_batch_size: 8\n"),
        [((torch.randn(n, 3, 8, 8),), {}) for n in (1, 2)],
    )
    tokens = lambda b, n: ((torch.randint(0, 50, (b, n)),), {})
    yield (
        "words", Words(), tokens(2, 6)[0], {}, ({0: BATCH, 1: LENGTH},),
        config([("ARGS[0]", "INT64", [-1])], [("RESULT", "FP32", [4])], "max_batch_size: 8\n"),
        [tokens(1, 6), tokens(3, 6)],
    )
    yield (
        "best", Best(), (torch.randn(2, 6),), {}, ({0: BATCH},),
        config(
            [("ARGS[0]", "FP32", [6])],
            [("RESULT[0]", "FP32", [2]), ("RESULT[1]", "INT64", [2])],
            "max_batch_size: 8\n",
        ),
        [((torch.randn(n, 6),), {}) for n in (1, 4)],
    )
    yield (
        "missing", Missing(), (torch.randn(2),), {}, None,
        config(
            [("ARGS[0]", "FP32", [2])],
            [("RESULT[0]", "FP32", [2]), ("RESULT[2]", "FP32", [2])],
        ),
        [((torch.randn(2),), {})],
    )
    yield (
        "running", Running(), (torch.randn(2, 3), torch.randn(2, 3)), {}, ({0: BATCH}, {0: BATCH}),
        'platform: "torch_aoti"\nmax_batch_size: 4\n'
        + tensor("input", "INPUT__0", "FP32", [3]) + tensor("output", "OUTPUT__0", "FP32", [3])
        + 'sequence_batching { state { input_name: "INPUT__1" output_name: "OUTPUT__1"'
        " data_type: TYPE_FP32 dims: [ 3 ] initial_state { data_type: TYPE_FP32 dims: [ 3 ]"
        ' zero_data: true name: "zero" } } }\n',
        [],
    )
    yield (
        "scalar", Scalar(), (torch.randn(4),), {}, None,
        config([("ARGS[0]", "FP32", [4])], [("RESULT", "FP32", [1])]),
        [],
    )
    rows = torch.export.Dim("rows", min=1, max=64)
    yield (
        "doubled", Doubled(), (torch.randn(3, 2), torch.randn(6, 2)), {},
        ({0: rows}, {0: 2 * rows}),
        config([("ARGS[0]", "FP32", [-1, 2]), ("ARGS[1]", "FP32", [-1, 2])],
               [("RESULT", "FP32", [-1, 2])]),
        [((torch.randn(n, 2), torch.randn(2 * n, 2)), {}) for n in (1, 3)],
    )
    yield (
        "complex", Complex(), (torch.randn(3, 4, dtype=torch.complex64),), {}, None,
        config([("ARGS[0]", "FP32", [3, 4])], [("RESULT", "FP32", [3, 4])]), [],
    )
    yield (
        "writing", Writing(), (torch.randn(4),), {}, None,
        config([("ARGS[0]", "FP32", [4])], [("RESULT", "FP32", [4])]),
        [],
    )
    for name in WEIGHTS:
        yield (
            name, Mlp(), (torch.randn(2, 8),), {}, ({0: BATCH},),
            config([("ARGS[0]", "FP32", [8])], [("RESULT", "FP32", [3])], "max_batch_size: 16\n"),
            [((torch.randn(n, 8),), {}) for n in (1, 2, 5)],
        )
    yield (
        "counted", Counted(), (torch.randint(0, 4, (8,)),), {}, None,
        config([("ARGS[0]", "INT64", [8])], [("RESULT", "INT64", [5])]),
        [],
    )


#: Options for models whose weights are not in their library: in a file, in one for each, or nowhere.
OUTSIDE = "aot_inductor.package_constants_in_so"
FORMAT = "aot_inductor.package_constants_on_disk_format"
WEIGHTS = {
    "beside": {OUTSIDE: False, FORMAT: "binary_blob"},
    "listed": {OUTSIDE: False, FORMAT: "pickle_weights"},
    "weightless": {OUTSIDE: False},
}


def main():
    folder = pathlib.Path(sys.argv[1])
    wanted = set(sys.argv[2:])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    for name, module, samples, keywords, dynamic, text, cases in models():
        if wanted and name not in wanted:
            continue
        module = module.eval()
        exported = torch.export.export(module, samples, keywords, dynamic_shapes=dynamic)
        package = str(folder / f"{name}.pt2")
        options = WEIGHTS.get(name)
        torch._inductor.aoti_compile_and_package(
            exported, package_path=package, inductor_configs=options
        )
        answers.write(folder / f"{name}.json", text, module, cases, aoti_names(text))
        print(package)


def aoti_names(text):
    """A function that maps arguments and results to the names in a configuration."""
    import re

    configured = {
        kind: re.findall(rf'^{kind} {{ name: "([^"]*)"', text, re.MULTILINE)
        for kind in ("input", "output")
    }

    def paths(prefix, value):
        if isinstance(value, dict):
            return [one for key in value for one in paths(f"{prefix}[{key}]", value[key])]
        if isinstance(value, (tuple, list)):
            return [one for i, item in enumerate(value) for one in paths(f"{prefix}[{i}]", item)]
        return [(prefix, value)]

    def assign(kind, leaves):
        found = {}
        for number, (path, value) in enumerate(leaves):
            spellings = {path, f"{kind.upper()}__{number}"}
            if path.startswith("KWARGS["):
                spellings.add(path.replace("[", "", 1).replace("]", "", 1))
            for name in configured[kind]:
                if name in spellings:
                    found[name] = value
        return found

    def names(arguments, keywords, results):
        leaves = paths("ARGS", arguments) + paths("KWARGS", keywords)
        return assign("input", leaves), assign("output", paths("RESULT", results))

    return names


if __name__ == "__main__":
    main()
