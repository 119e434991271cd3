"""Compares our forest predictor with XGBoost, LightGBM, treelite and ONNX Runtime on one core.

    pip install -r tests/forests/requirements.txt
    cargo build --release -p galatea-forest -p galatea-backend-fil --example forest --example execute
    cargo build --release -p galatea
    python bench/forests.py --programs target/release/examples --galatea target/release/galatea

There are two models with 500 trees on 32 features: an XGBoost model with depth 6, and a LightGBM
model with 63 leaves. Each call predicts different rows from the previous call, because repeated
rows would help the processor's branch prediction. All libraries are called from C, with one thread.
See bench/README.md.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import pathlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

import lightgbm
import numpy as np
import onnxmltools
import treelite
import xgboost
from lightgbm.basic import _LIB as LIGHTGBM
from onnx_trees import onnx_call
from onnxmltools.convert.common.data_types import FloatTensorType
from treelite.core import _LIB as TREELITE
from xgboost.core import _LIB as XGBOOST

TREES = 500
FEATURES = 32
ROWS = 20_000
COUNTS = (1, 32, 1000)
SECONDS = 2.0
ROUNDS = 3
NEVER = (float("inf"),) * 2
CONFIG = f"""\
backend: "fil"
max_batch_size: 1024
input {{ name: "input__0" data_type: TYPE_FP32 dims: [ {FEATURES} ] }}
output {{ name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] }}
parameters {{ key: "is_classifier" value {{ string_value: "false" }} }}
parameters {{ key: "model_type" value {{ string_value: "TYPE" }} }}
"""

Call = Callable[[np.ndarray], None]
#: The least and the middle time, in microseconds.
Times = tuple[float, float]


def checked(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"a library returned {status}")


def xgboost_call(booster: xgboost.Booster) -> Call:
    """XGBoost's prediction of an array."""
    config = json.dumps({
        "type": 0, "training": False, "iteration_begin": 0, "iteration_end": 0,
        "strict_shape": False, "missing": float("nan"), "cache_id": 0,
    }).encode()
    shape, result = ctypes.POINTER(ctypes.c_uint64)(), ctypes.POINTER(ctypes.c_float)()
    dimensions = ctypes.c_uint64()

    def call(rows: np.ndarray) -> None:
        # The string that the library's own package would build for each array, without its checks.
        values = b'{"data": [%d, true], "shape": [%d, %d], "typestr": "<f4", "version": 3}' % (
            rows.ctypes.data, *rows.shape)
        checked(XGBOOST.XGBoosterPredictFromDense(
            booster.handle, values, config, None, ctypes.byref(shape),
            ctypes.byref(dimensions), ctypes.byref(result)))
    return call


def lightgbm_call(booster: lightgbm.Booster, count: int) -> Call:
    """LightGBM's prediction of an array, or its fast prediction of a single row."""
    output, length = (ctypes.c_double * count)(), ctypes.c_int64()
    handle = booster._handle  # pylint: disable=protected-access
    parameters = b"num_threads=1"
    if count == 1:
        fast = ctypes.c_void_p()
        checked(LIGHTGBM.LGBM_BoosterPredictForMatSingleRowFastInit(
            handle, 0, 0, -1, 0, FEATURES, parameters, ctypes.byref(fast)))
        return lambda rows: checked(LIGHTGBM.LGBM_BoosterPredictForMatSingleRowFast(
            fast, ctypes.c_void_p(rows.ctypes.data), ctypes.byref(length), output))
    return lambda rows: checked(LIGHTGBM.LGBM_BoosterPredictForMat(
        handle, ctypes.c_void_p(rows.ctypes.data), 0, count, FEATURES, 1, 0, 0, -1, parameters,
        ctypes.byref(length), output))


def treelite_call(model: treelite.Model, count: int) -> Call:
    """Treelite's prediction with 32 bits, called as Triton calls it."""
    config, output = ctypes.c_void_p(), (ctypes.c_float * count)()
    text = b'{"predict_type": "default", "nthread": 1}'
    checked(TREELITE.TreeliteGTILParseConfig(text, ctypes.byref(config)))
    return lambda rows: checked(TREELITE.TreeliteGTILPredict(
        model.handle, ctypes.c_void_p(rows.ctypes.data), b"float32", ctypes.c_uint64(count),
        output, config))


def measure(call: Call, rows: np.ndarray, count: int) -> Times:
    """Makes calls for some seconds, each with different rows."""
    parts = [rows[first:first + count] for first in range(0, ROWS - count + 1, count)]
    taken, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for part in parts[: max(1, 2000 // count)]:
            before = time.perf_counter()
            call(part)
            taken.append((time.perf_counter() - before) * 1e6)
        parts = parts[1:] + parts[:1]
    return min(taken), statistics.median(taken)


def ours(programs: pathlib.Path, kind: str, model: pathlib.Path, rows: pathlib.Path,
         count: int) -> Times:
    """Our predictor, which measures itself in the same way."""
    command = [programs / "forest", "time", kind, model, rows, str(count)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    _, least, middle = result.stdout.split()
    return float(least), float(middle)


def backend(programs: pathlib.Path, kind: str, model: pathlib.Path, rows: pathlib.Path, count: int,
            requests: int) -> Times:
    """Our backend without a server, which joins the rows of one or more requests."""
    version = model.parent / kind / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / model.name).write_bytes(model.read_bytes())
    (version.parent / "config.pbtxt").write_text(CONFIG.replace("TYPE\"", f"{kind}\""))
    command = [programs / "execute", version.parent, rows, str(count)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    for line in result.stdout.splitlines():
        _, number, least, middle = line.split()
        if int(number) == requests:
            return float(least), float(middle)
    return NEVER


def convert(name: str, booster: xgboost.Booster | lightgbm.Booster, path: pathlib.Path) -> None:
    """The model in ONNX format."""
    converters = {"XGBoost": onnxmltools.convert_xgboost, "LightGBM": onnxmltools.convert_lightgbm}
    types = [("rows", FloatTensorType([None, FEATURES]))]
    path.write_bytes(converters[name](booster, initial_types=types).SerializeToString())


def train(folder: pathlib.Path, rows: np.ndarray) -> tuple[xgboost.Booster, lightgbm.Booster]:
    """Both models, in memory and in files."""
    random = np.random.default_rng(1)
    label = rows[:, 0] * rows[:, 1] + np.sin(rows[:, 2] * 3) + random.normal(size=ROWS) * 0.3
    parameters = dict(objective="reg:squarederror", max_depth=6, nthread=1, eta=0.1)
    boosted = xgboost.train(parameters, xgboost.DMatrix(rows, label), TREES)
    boosted.save_model(folder / "xgboost.json")
    parameters = dict(objective="regression", num_leaves=63, num_threads=1, verbose=-1)
    light = lightgbm.train(parameters, lightgbm.Dataset(rows, label), TREES)
    light.save_model(folder / "model.txt")
    convert("XGBoost", boosted, folder / "XGBoost.onnx")
    convert("LightGBM", light, folder / "LightGBM.onnx")
    return boosted, light


def predictors_of(name: str, own: Callable[[int], Call], programs: pathlib.Path,
                  folder: pathlib.Path, rows: np.ndarray) -> dict[str, Callable[[int], Times]]:
    """The predictors of the rows, each with a library's model, and how they are measured."""
    if name == "XGBoost":
        kind, model = "xgboost_json", folder / "xgboost.json"
        read = treelite.frontend.load_xgboost_model(model, format_choice="json")
    else:
        kind, model = "lightgbm", folder / "model.txt"
        read = treelite.frontend.load_lightgbm_model(model)
    onnx, file = folder / f"{name}.onnx", folder / "rows"
    return {
        "Galatea": lambda count: ours(programs, kind, model, file, count),
        "Galatea's backend": lambda count: backend(programs, kind, model, file, count, 1),
        "Galatea's backend, two requests":
            lambda count: backend(programs, kind, model, file, count, 2),
        name: lambda count: measure(own(count), rows, count),
        "treelite": lambda count: measure(treelite_call(read, count), rows, count),
        "ONNX Runtime":
            lambda count: measure(onnx_call(onnx, "rows", "variable", count), rows, count),
    }


def rows_of_table(
    programs: pathlib.Path, folder: pathlib.Path
) -> Iterator[tuple[str, list[Times]]]:
    """Measures each predictor for each number of rows, and keeps the times of the best round."""
    rows = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
    rows.tofile(folder / "rows")
    boosted, light = train(folder, rows)
    for name, own in (("XGBoost", lambda count: xgboost_call(boosted)),
                      ("LightGBM", lambda count: lightgbm_call(light, count))):
        predictors = predictors_of(name, own, programs, folder, rows)
        best = {key: [NEVER] * len(COUNTS) for key in predictors}
        for _ in range(ROUNDS):
            for key, predictor in predictors.items():
                best[key] = [min(old, predictor(count))
                             for old, count in zip(best[key], COUNTS, strict=True)]
        yield from ((f"{name}'s model, {key}", times) for key, times in best.items())


def served(program: pathlib.Path, model: pathlib.Path) -> Iterator[str]:
    """The server's cells over HTTP: the median time of a request, and the server's CPU time."""
    for count in COUNTS:
        command = [program, "bench", "--json", "--concurrency=1", "--protocol=http",
                   f"--duration={2 * SECONDS:g}", f"--batch={count}", model]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
        (found,) = json.loads(result.stdout)["results"]
        cpu = found["server_cpu_seconds"] / found["responses"] * 1e6
        yield f"{found['latency_ms']['p50'] * 1000:,.1f} (CPU {cpu:,.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=pathlib.Path, required=True,
                        help="the folder of the examples `forest` and `execute`")
    parser.add_argument("--galatea", type=pathlib.Path, help="a server, measured over HTTP too")
    arguments = parser.parse_args()
    print("| predictor | " + " | ".join(f"{count} rows" for count in COUNTS) + " |")
    print("|---|" + "---|" * len(COUNTS))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, times in rows_of_table(arguments.programs, folder):
            cells = ("–" if pair == NEVER else "{:,.1f} ({:,.1f})".format(*pair) for pair in times)
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
        if arguments.galatea:
            for kind in ("xgboost_json", "lightgbm"):
                cells = served(arguments.galatea, folder / kind)
                print(f"| {kind}, over HTTP | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
