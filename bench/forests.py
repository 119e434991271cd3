"""Forests on one core: our predictor beside XGBoost, LightGBM and treelite, called in C.

    pip install -r tests/forests/requirements.txt
    cargo build --release -p galatea-forest --example forest
    python bench/forests.py --forest target/release/examples/forest

Two models of 500 trees on 32 features: XGBoost with depth 6, LightGBM with 63 leaves. Each call
predicts other rows than the one before, because the same rows again would suit the processor's guesses
of branches. All libraries have one thread. See bench/README.md.
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
import treelite
import xgboost
from lightgbm.basic import _LIB as LIGHTGBM
from treelite.core import _LIB as TREELITE
from xgboost.core import _LIB as XGBOOST

TREES = 500
FEATURES = 32
ROWS = 20_000
COUNTS = (1, 32, 1000)
SECONDS = 2.0
ROUNDS = 3

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
        # What the library's own package would build for each array, without its checks.
        values = b'{"data": [%d, true], "shape": [%d, %d], "typestr": "<f4", "version": 3}' % (
            rows.ctypes.data, *rows.shape)
        checked(XGBOOST.XGBoosterPredictFromDense(
            booster.handle, values, config, None, ctypes.byref(shape),
            ctypes.byref(dimensions), ctypes.byref(result)))
    return call


def lightgbm_call(booster: lightgbm.Booster, count: int) -> Call:
    """LightGBM's prediction of an array, or its fast one of a row."""
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
    """Treelite's prediction, as Triton calls it: of 32 bits."""
    config, output = ctypes.c_void_p(), (ctypes.c_float * count)()
    text = b'{"predict_type": "default", "nthread": 1}'
    checked(TREELITE.TreeliteGTILParseConfig(text, ctypes.byref(config)))
    return lambda rows: checked(TREELITE.TreeliteGTILPredict(
        model.handle, ctypes.c_void_p(rows.ctypes.data), b"float32", ctypes.c_uint64(count),
        output, config))


def measure(call: Call, rows: np.ndarray, count: int) -> Times:
    """Calls with other rows each time, for some seconds."""
    parts = [rows[first:first + count] for first in range(0, ROWS - count + 1, count)]
    taken, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for part in parts[: max(1, 2000 // count)]:
            before = time.perf_counter()
            call(part)
            taken.append((time.perf_counter() - before) * 1e6)
        parts = parts[1:] + parts[:1]
    return min(taken), statistics.median(taken)


def ours(program: pathlib.Path, kind: str, model: pathlib.Path, rows: pathlib.Path,
         count: int) -> Times:
    """Our predictor, which measures itself in the same way."""
    command = [program, "time", kind, model, rows, str(count)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    _, least, middle = result.stdout.split()
    return float(least), float(middle)


def train(folder: pathlib.Path, rows: np.ndarray) -> tuple[xgboost.Booster, lightgbm.Booster]:
    """Both models, in files too."""
    random = np.random.default_rng(1)
    label = rows[:, 0] * rows[:, 1] + np.sin(rows[:, 2] * 3) + random.normal(size=ROWS) * 0.3
    parameters = dict(objective="reg:squarederror", max_depth=6, nthread=1, eta=0.1)
    boosted = xgboost.train(parameters, xgboost.DMatrix(rows, label), TREES)
    boosted.save_model(folder / "xgboost.json")
    parameters = dict(objective="regression", num_leaves=63, num_threads=1, verbose=-1)
    light = lightgbm.train(parameters, lightgbm.Dataset(rows, label), TREES)
    light.save_model(folder / "model.txt")
    return boosted, light


def rows_of_table(program: pathlib.Path, folder: pathlib.Path) -> Iterator[tuple[str, list[Times]]]:
    """Each predictor with its times for each number of rows, of the best round."""
    rows = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
    rows.tofile(folder / "rows")
    boosted, light = train(folder, rows)
    read = {
        "XGBoost": treelite.frontend.load_xgboost_model(
            folder / "xgboost.json", format_choice="json"),
        "LightGBM": treelite.frontend.load_lightgbm_model(folder / "model.txt"),
    }
    files = {"XGBoost": ("xgboost_json", "xgboost.json"), "LightGBM": ("lightgbm", "model.txt")}
    own = {"XGBoost": lambda count: xgboost_call(boosted),
           "LightGBM": lambda count: lightgbm_call(light, count)}
    for name, (kind, file) in files.items():
        predictors: dict[str, Callable[[int], Times]] = {
            f"{name}'s model, Galatea": lambda count, kind=kind, file=file: ours(
                program, kind, folder / file, folder / "rows", count),
            f"{name}'s model, {name}": lambda count, name=name: measure(
                own[name](count), rows, count),
            f"{name}'s model, treelite": lambda count, name=name: measure(
                treelite_call(read[name], count), rows, count),
        }
        best = {key: [(float("inf"),) * 2] * len(COUNTS) for key in predictors}
        for _ in range(ROUNDS):
            for key, predictor in predictors.items():
                best[key] = [min(old, predictor(count))
                             for old, count in zip(best[key], COUNTS, strict=True)]
        yield from best.items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forest", type=pathlib.Path, required=True, help="the example `forest`")
    arguments = parser.parse_args()
    print("| predictor | " + " | ".join(f"{count} rows" for count in COUNTS) + " |")
    print("|---|" + "---|" * len(COUNTS))
    with tempfile.TemporaryDirectory() as folder:
        for name, times in rows_of_table(arguments.forest, pathlib.Path(folder)):
            cells = (f"{least:,.1f} ({middle:,.1f})" for least, middle in times)
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
