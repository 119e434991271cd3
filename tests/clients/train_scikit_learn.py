"""Trains scikit-learn models, saves them with the code in docs/scikit-learn.md, and writes their
predictions.

test_scikit_learn.py runs it in an environment that has the libraries: `train_scikit_learn.py FOLDER
TREELITE ONNX`, where the last two are the page's code. The checkpoints are written to
FOLDER/forests, the ONNX files to FOLDER/onnx, a joblib file to FOLDER/python, and the models' own
results for some rows to FOLDER/expected.json.
"""

import json
import os
import pathlib
import sys

import joblib
import numpy as np
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

RANDOM = np.random.default_rng(0)
# 32-bit values, as clients send them.
ROWS = RANDOM.normal(size=(300, 6)).astype(np.float32)
NUMBER = ROWS[:, 0] * 2 + ROWS[:, 2] * ROWS[:, 1]
THREE = np.digitize(ROWS[:, 0] + ROWS[:, 1], [-0.5, 0.7])
TWO = (THREE > 0).astype(int)
NAMES = np.array(["low", "middle", "high"])[THREE]
FEW = dict(n_estimators=7, random_state=0)
LEAVES = dict(max_iter=7, random_state=0)

FORESTS = {
    "random_number": RandomForestRegressor(**FEW).fit(ROWS, NUMBER),
    "random_two": RandomForestClassifier(**FEW).fit(ROWS, TWO),
    "random_three": RandomForestClassifier(**FEW).fit(ROWS, NAMES),
    "extra_number": ExtraTreesRegressor(**FEW).fit(ROWS, NUMBER),
    "extra_three": ExtraTreesClassifier(**FEW).fit(ROWS, THREE),
    "boosted_number": GradientBoostingRegressor(**FEW).fit(ROWS, NUMBER),
    "boosted_two": GradientBoostingClassifier(**FEW).fit(ROWS, TWO),
    "boosted_three": GradientBoostingClassifier(**FEW).fit(ROWS, THREE),
    "histogram_number": HistGradientBoostingRegressor(**LEAVES).fit(ROWS, NUMBER),
    "histogram_two": HistGradientBoostingClassifier(**LEAVES).fit(ROWS, TWO),
    "histogram_three": HistGradientBoostingClassifier(**LEAVES).fit(ROWS, THREE),
    "isolation": IsolationForest(**FEW).fit(ROWS),
}
CONVERTED = {
    "linear_names": make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, NAMES),
    "linear_number": make_pipeline(StandardScaler(), Ridge()).fit(ROWS, NUMBER),
    **{name: FORESTS[name] for name in ("random_two", "random_number", "boosted_three")},
}
NO_ZIPMAP = 'options={"zipmap": False}'


def expected(model, rows):
    """The model's results for the rows."""
    if isinstance(model, IsolationForest):
        return {"score": (-model.score_samples(rows)).tolist()}
    found = {"predict": model.predict(rows).tolist()}
    if hasattr(model, "predict_proba"):
        found["predict_proba"] = model.predict_proba(rows).tolist()
        found["index"] = model.predict_proba(rows).argmax(axis=1).tolist()
    return found


def save(code, folder, name, model, ending):
    """Runs the page's code, whose file belongs to `churn`."""
    assert f'"churn.{ending}"' in code
    os.chdir(folder)
    exec(code.replace('"churn.', f'"{name}.'), {"model": model})


def main(folder, treelite_code, onnx_code):
    for name in ("forests", "onnx", "zipmap", "python"):
        (folder / name).mkdir()
    for name, model in FORESTS.items():
        save(treelite_code, folder / "forests", name, model, "tl")
    for name, model in CONVERTED.items():
        # Regressors don't support the option.
        is_classifier = hasattr(model, "predict_proba")
        code = onnx_code if is_classifier else onnx_code.replace(f", {NO_ZIPMAP}", "")
        assert NO_ZIPMAP in onnx_code and (NO_ZIPMAP in code) == is_classifier
        save(code, folder / "onnx", name, model, "onnx")
    code = onnx_code.replace(f", {NO_ZIPMAP}", "")
    save(code, folder / "zipmap", "tables", CONVERTED["linear_names"], "onnx")
    joblib.dump(CONVERTED["linear_names"], folder / "python" / "churn.joblib")
    rows = ROWS[:40]
    values = {name: expected(model, rows) for name, model in (FORESTS | CONVERTED).items()}
    (folder / "expected.json").write_text(json.dumps({"rows": rows.tolist(), "models": values}))


main(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3])
