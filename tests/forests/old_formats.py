"""Writes golden files in formats that current libraries only read or no longer support.

    pip install "numpy<2" "scipy<1.12" scikit-learn==1.3.2 treelite==3.9.1 treelite_runtime==3.9.1 xgboost==1.7.6
    python tests/forests/old_formats.py crates/forest/tests/goldens

XGBoost 1.7.6 writes its binary format, and treelite 3.9.1 writes checkpoints of version 3.
"""

from __future__ import annotations

import pathlib
import sys
import warnings

import numpy as np
import treelite
import xgboost
from sklearn import ensemble

ROWS = 40
FEATURES = 6


def golden(folder: pathlib.Path, name: str, rows: np.ndarray, expected: np.ndarray) -> None:
    """Rows and predictions next to a model."""
    rows.astype("<f4").tofile(folder / f"{name}.rows")
    np.asarray(expected, "<f4").reshape(len(rows), -1).tofile(folder / f"{name}.expected")


def main(folder: pathlib.Path) -> None:
    random = np.random.default_rng(3)
    rows = random.normal(size=(400, FEATURES)).astype(np.float32)
    score = rows[:, 0] * rows[:, 1] + rows[:, 2]
    holes = rows.copy()
    holes[random.random(rows.shape) < 0.1] = np.nan
    classes = np.digitize(score, [-0.6, 0.6])
    common = dict(max_depth=3, nthread=1)
    settings = {
        "logistic": (dict(objective="binary:logistic", base_score=0.3), score > 0),
        "classes": (dict(objective="multi:softprob", num_class=3), classes),
        "dart": (dict(objective="reg:squarederror", booster="dart", rate_drop=0.5), score),
    }
    for name, (more, label) in settings.items():
        booster = xgboost.train(common | more, xgboost.DMatrix(holes, label), 3)
        path = folder / f"old_xgboost_{name}.model"
        booster.save_model(path)
        golden(folder, path.name, holes[:ROWS], booster.predict(xgboost.DMatrix(holes[:ROWS])))
        if name != "dart":
            read = treelite.Model.from_xgboost(booster)
            read.serialize(str(folder / f"old_treelite_{name}.tl"))
            expected = treelite.gtil.predict(read, holes[:ROWS])
            golden(folder, f"old_treelite_{name}.tl", holes[:ROWS], expected)
    forest = ensemble.RandomForestClassifier(3, max_depth=3, random_state=0).fit(rows, classes)
    treelite.sklearn.import_model(forest).serialize(str(folder / "old_treelite_vectors.tl"))
    golden(folder, "old_treelite_vectors.tl", rows[:ROWS], forest.predict_proba(rows[:ROWS]))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(pathlib.Path(sys.argv[1]))
