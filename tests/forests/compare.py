"""Compares crates/forest with the libraries that write models, and with treelite.

    cargo build -p galatea-forest --example forest
    python tests/forests/compare.py --forest target/debug/examples/forest

needs the packages of requirements.txt. It trains about a hundred model files, predicts random rows
with each, and prints the greatest difference in rounding units: 2^-24 of the greatest sum of a
row's leaves. `--write FOLDER` writes the golden files of crates/forest/tests instead.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import treelite
from models import Model, all_models, random_rows

#: The greatest difference. Each of up to 50 trees rounds once, in another order than the library.
UNITS_MAX = 64.0
UNIT = 2.0**-24
#: Contributions are quotients of products, which XGBoost calculates with 32 bits.
EXPLAINED_ERROR_MAX = 2e-4
EXPLAINED_ROWS = 100
#: These are goldens, with a few trees each.
GOLDENS = {
    "xgboost_squarederror_base", "xgboost_logistic", "xgboost_softprob", "xgboost_vector_targets",
    "xgboost_dart", "xgboost_categories_many", "lightgbm_regression",
    "lightgbm_binary_sigmoid", "lightgbm_multiclassova", "lightgbm_random_forest",
    "lightgbm_categories", "lightgbm_zero_as_missing", "sklearn_forest_classes",
    "sklearn_forest_targets", "sklearn_boosting_two", "sklearn_histogram_two", "sklearn_isolation",
}
GOLDEN_TREES = 3
GOLDEN_ROWS = 40


class Predictor:
    """Our predictor, as a program that reads and writes files."""

    def __init__(self, program: pathlib.Path, folder: pathlib.Path) -> None:
        self.program = program
        self.folder = folder

    def run(self, command: str, model: Model, rows: np.ndarray) -> np.ndarray:
        rows_path, output = self.folder / "rows", self.folder / "output"
        rows.astype("<f4").tofile(rows_path)
        subprocess.run(
            [self.program, command, model.format, model.path, rows_path, output], check=True)
        return np.fromfile(output, "<f4").reshape(len(rows), -1)


def units(ours: np.ndarray, expected: np.ndarray, scale: float) -> float:
    """The greatest difference, in rounding units of a scale."""
    expected = np.asarray(expected, np.float64).reshape(ours.shape)
    if not np.array_equal(np.isnan(ours), np.isnan(expected)):
        return float("inf")
    size = np.maximum(np.abs(expected), scale)
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - expected) / size / UNIT
    return float(np.nanmax(difference, initial=0.0))


def compare(predictor: Predictor, model: Model, rows: np.ndarray) -> dict[str, float]:
    """The greatest differences for a model, by what it is compared with."""
    found = {}
    predicted = predictor.run("predict", model, rows)
    margins = predictor.run("margins", model, rows)
    # Sums are rounded according to the greatest one; predictions are functions of the sums.
    scale = max(1.0, float(np.nanmax(np.abs(margins))))
    if model.predict is not None:
        found["library"] = units(predicted, model.predict(rows), scale)
    if model.margins is not None:
        found["margins"] = units(margins, model.margins(rows), scale)
    if model.treelite is not None:
        data = rows.astype(model.treelite.input_type)
        found["treelite"] = units(predicted, treelite.gtil.predict(model.treelite, data), scale)
    return found


def explain(predictor: Predictor, model: Model, rows: np.ndarray) -> float | None:
    """The greatest difference in contributions, relative to the greatest contribution."""
    if model.explain is None:
        return None
    ours = predictor.run("explain", model, rows)
    expected = np.asarray(model.explain(rows), np.float64).reshape(ours.shape)
    return float(np.max(np.abs(ours - expected)) / max(1.0, np.max(np.abs(expected))))


def compare_all(program: pathlib.Path, count: int, only: set[str]) -> int:
    """Compares all models, and returns the number that differ."""
    failures = models = 0
    with tempfile.TemporaryDirectory() as folder:
        predictor = Predictor(program, pathlib.Path(folder))
        for index, model in enumerate(all_models(pathlib.Path(folder), 30, only)):
            rows = random_rows(np.random.default_rng(1000 + index), count, model)
            found = compare(predictor, model, rows)
            explained = explain(predictor, model, rows[:EXPLAINED_ROWS])
            is_equal = all(value <= UNITS_MAX for value in found.values())
            is_equal = is_equal and (explained is None or explained <= EXPLAINED_ERROR_MAX)
            shown = ", ".join(f"{key} {value:.1f}" for key, value in found.items())
            shown += "" if explained is None else f", contributions {explained:.1e}"
            print(f"{'ok  ' if is_equal else 'FAIL'} {model.path.name}: {shown}", flush=True)
            failures += not is_equal
            models += 1
    print(f"{models} files with {count} rows each, {failures} differ")
    return failures


def write_goldens(folder: pathlib.Path) -> None:
    """Writes small models, each with rows and its library's predictions."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    for index, model in enumerate(all_models(folder, GOLDEN_TREES, GOLDENS)):
        # LightGBM's checkpoints are large, and one is enough to show what they add.
        is_large = model.path.suffix == ".tl" and model.name.startswith("lightgbm_")
        if model.predict is None or (is_large and model.name != "lightgbm_categories"):
            model.path.unlink()
            continue
        rows = random_rows(np.random.default_rng(index), GOLDEN_ROWS, model)
        expected = np.asarray(model.predict(rows), "<f4").reshape(GOLDEN_ROWS, -1)
        rows.astype("<f4").tofile(folder / f"{model.path.name}.rows")
        expected.tofile(folder / f"{model.path.name}.expected")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forest", type=pathlib.Path, help="the example `forest`")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=[], help="names of models")
    parser.add_argument("--write", type=pathlib.Path, help="a folder for goldens")
    arguments = parser.parse_args()
    if arguments.write:
        write_goldens(arguments.write)
    elif arguments.forest:
        sys.exit(compare_all(arguments.forest, arguments.rows, set(arguments.only)) > 0)
    else:
        parser.error("--forest or --write")


if __name__ == "__main__":
    main()
