"""Creates small TorchScript models and their expected results: golden files for the backend
`pytorch`.

    python tests/pytorch/torchscript.py crates/backend-pytorch/tests/models

needs PyTorch. The models consist of a few kilobytes of data, and the golden files are committed.
"""

import pathlib
import re
import sys
from typing import Dict, List, Tuple

import torch
from torch import Tensor, nn

import answers


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Pair(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tuple[Tensor, Tensor]:
        return left + right, left - right


class Keyed(nn.Module):
    def forward(self, inputs: Dict[str, Tensor]) -> Tensor:
        return inputs["a"] * 2 + inputs["b"]


class Upper(nn.Module):
    def forward(self, texts: List[str]) -> List[str]:
        return [text.upper() for text in texts]


class Mixed(nn.Module):
    def forward(self, texts: List[str], x: Tensor) -> Tuple[List[str], Tensor]:
        return [text + "!" for text in texts], x + len(texts)


class Kinds(nn.Module):
    def forward(
        self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor, h: Tensor
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        return a * 2, b / 2, c + 1, d - 1, e * 3, f + 2, g // 2, ~h


class Writing(nn.Module):
    """Writes to its input."""

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return x


class Keeping(nn.Module):
    """Returns the input of the previous run."""

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(2)

    def forward(self, x: Tensor) -> Tensor:
        last = self.last
        self.last = x
        return last


class Listing(nn.Module):
    """Keeps the inputs of all runs in a list."""

    def __init__(self):
        super().__init__()
        self.all: List[Tensor] = [torch.zeros(2)]

    def forward(self, x: Tensor) -> Tensor:
        self.all.append(x)
        return self.all[-2]


class Replacing(nn.Module):
    """Makes a buffer refer to the input's memory."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        last = self.last + 0
        self.last.set_(x)
        return last


class Counting(nn.Module):
    """Returns its own state, which the next run changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.total += x
        return self.total


class Loop(nn.Module):
    """Control flow that depends on the data."""

    def forward(self, x: Tensor) -> Tensor:
        while bool(x.sum() < 100):
            x = x * 2
        return x


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Total(nn.Module):
    def forward(self, x: Tensor, total: Tensor) -> Tuple[Tensor, Tensor]:
        total = total + x
        return total * 10, total


class Scalar(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


class Best(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        values, places = torch.topk(x, 2, dim=1)
        return values, places


class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(2, 3, 3, padding=1)

    def forward(self, x):
        return self.layer(x)


class Saving(nn.Module):
    """Writes a file."""

    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, "x.pt")
        return x


class Mapping(nn.Module):
    """Reads a file."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_file("x.bin", size=2)


class Ragged(nn.Module):
    """The sum of each request in a batch of different lengths."""

    def forward(self, values: Tensor, counts: Tensor) -> Tensor:
        sums: List[Tensor] = []
        start = 0
        for i in range(counts.size(0)):
            count = int(counts[i])
            sums.append(values[start : start + count].sum().reshape(1, 1))
            start += count
        return torch.cat(sums)


def tensor(kind, name, datatype, dims, more=""):
    return f'{kind} {{ name: "{name}" data_type: TYPE_{datatype} dims: {list(dims)} {more} }}\n'


def config(inputs, outputs, more=""):
    lines = [tensor("input", *one) for one in inputs] + [tensor("output", *one) for one in outputs]
    return 'platform: "pytorch_libtorch"\n' + more + "".join(lines)


BATCH = "max_batch_size: 8\n"
ONE = "reshape { }"


def models():
    x = lambda *shape: torch.randn(*shape)
    yield ("mlp", Mlp(), config([("x", "FP32", [4])], [("OUTPUT__0", "FP32", [3])], BATCH),
           [((x(n, 4),), {}) for n in (1, 3)])
    yield ("pair", Pair(),
           config([("INPUT__1", "FP32", [2]), ("INPUT__0", "FP32", [2])],
                  [("OUTPUT__1", "FP32", [2]), ("OUTPUT__0", "FP32", [2])], BATCH),
           [((x(n, 2), x(n, 2)), {}) for n in (1, 2)])
    yield ("ordered", Pair(),
           config([("one", "FP32", [2]), ("other", "FP32", [2])],
                  [("sum", "FP32", [2]), ("difference", "FP32", [2])]),
           [((x(2), x(2)), {})])
    yield ("named", Pair(),
           config([("right", "FP32", [2]), ("left", "FP32", [2])], [("sum", "FP32", [2])]),
           [((x(2), x(2)), {})])
    yield ("keyed", Keyed(), config([("b", "FP32", [2]), ("a", "FP32", [2])],
                                    [("OUTPUT__0", "FP32", [2])]),
           [(({"a": x(2), "b": x(2)},), {})])
    yield ("upper", Upper(), config([("texts", "STRING", [-1])], [("OUTPUT__0", "STRING", [-1])]),
           [((["a", "", "zwölf"],), {}), ((["x"],), {})])
    yield ("mixed", Mixed(),
           config([("texts", "STRING", [1], ONE), ("x", "FP32", [2])],
                  [("OUTPUT__0", "STRING", [1], ONE), ("OUTPUT__1", "FP32", [2])], BATCH),
           [((["a"], x(1, 2)), {})])
    kinds = [("FP16", torch.float16), ("FP64", torch.float64), ("INT8", torch.int8),
             ("INT16", torch.int16), ("INT32", torch.int32), ("INT64", torch.int64),
             ("UINT8", torch.uint8), ("BOOL", torch.bool)]
    yield ("kinds", Kinds(),
           config([("abcdefgh"[i], name, [4]) for i, (name, _) in enumerate(kinds)],
                  [(f"OUTPUT__{i}", name, [4]) for i, (name, _) in enumerate(kinds)]),
           [(tuple(torch.arange(4).to(kind) for _, kind in kinds), {})])
    yield ("writing", Writing(), config([("x", "FP32", [2])], [("OUTPUT__0", "FP32", [2])]),
           [((torch.tensor([1.0, 2.0]),), {})])
    one = config([("x", "FP32", [2])], [("OUTPUT__0", "FP32", [2])])
    steps = [((torch.tensor([float(i), 2.0]),), {}) for i in range(1, 5)]
    for state in (Keeping, Listing, Replacing, Counting):
        yield (state.__name__.lower(), state(), one, steps)
    yield ("loop", Loop(), config([("x", "FP32", [-1])], [("OUTPUT__0", "FP32", [-1])]),
           [((torch.tensor([1.0, 2.0]),), {}), ((torch.tensor([500.0]),), {})])
    yield ("turned", Turned(), config([("x", "FP32", [2, 3])], [("OUTPUT__0", "FP32", [3, 2])], BATCH),
           [((x(n, 2, 3),), {}) for n in (1, 2)])
    yield ("total", Total(),
           BATCH + 'platform: "pytorch_libtorch"\n' + tensor("input", "INPUT__0", "FP32", [2])
           + tensor("output", "OUTPUT__0", "FP32", [2])
           + 'sequence_batching { state { input_name: "INPUT__1" output_name: "OUTPUT__1"'
           ' data_type: TYPE_FP32 dims: [ 2 ] initial_state { data_type: TYPE_FP32 dims: [ 2 ]'
           ' zero_data: true name: "zero" } } }\n', [])
    yield ("scalar", Scalar(), config([("x", "FP32", [2])], [("OUTPUT__0", "FP32", [1])]), [])
    yield ("best", Best(), config([("x", "FP32", [5])],
                                  [("OUTPUT__0", "FP32", [2]), ("OUTPUT__1", "INT64", [2])], BATCH),
           [((x(n, 5),), {}) for n in (1, 2)])
    yield ("convolved", Convolved(), config([("x", "FP32", [2, -1])],
                                            [("OUTPUT__0", "FP32", [3, -1])], BATCH),
           [((x(n, 2, 7),), {}) for n in (1, 2)])
    for files in (Saving, Mapping):
        yield (files.__name__.lower(), files(), one, [])
    yield ("ragged", Ragged(),
           config([("values", "FP32", [-1], "allow_ragged_batch: true")],
                  [("sums", "FP32", [1])], BATCH)
           + 'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "counts" data_type: TYPE_INT32'
           ' source_input: "values" }\ndynamic_batching { }\n', [])


def names_of(module, text):
    """A function that maps arguments and results to the names in a configuration."""
    configured = {
        kind: re.findall(rf'^{kind} {{ name: "([^"]*)"', text, re.MULTILINE)
        for kind in ("input", "output")
    }
    arguments = [one.name for one in module.forward.schema.arguments[1:]]

    def position(kind, name, order):
        if kind == "input" and name in arguments:
            return arguments.index(name)
        return int(name.split("__")[1]) if "__" in name else order

    def names(inputs, _, results):
        if isinstance(inputs[0], dict):
            given = inputs[0]
        else:
            given = {
                name: inputs[position("input", name, i)]
                for i, name in enumerate(configured["input"])
            }
        results = results if isinstance(results, tuple) else (results,)
        made = {
            name: results[position("output", name, i)]
            for i, name in enumerate(configured["output"])
        }
        return given, made

    return names


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    for name, module, text, cases in models():
        scripted = torch.jit.script(module.eval())
        scripted.save(str(folder / f"{name}.pt"))

        def run(*arguments, scripted=scripted, **keywords):
            copies = [one.clone() if isinstance(one, Tensor) else one for one in arguments]
            return scripted(*copies, **keywords)

        answers.write(folder / f"{name}.json", text, run, cases, names_of(scripted, text))


if __name__ == "__main__":
    main()
