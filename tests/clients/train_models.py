"""Trains tiny models with scikit-learn, XGBoost and LightGBM, and writes their predictions.

The tests run it in an environment that has these libraries: `train_models.py FOLDER`. Each
model is written to FOLDER/NAME/1/model.SUFFIX, and the library's own results for some rows
to FOLDER/NAME.json.
"""

import json
import pathlib
import sys

import joblib
import numpy as np
from lightgbm import LGBMClassifier, LGBMRegressor
from skops import io as skops
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from xgboost import XGBClassifier, XGBRegressor

X, CLASSES = load_iris(return_X_y=True)
# XGBoost calculates with 32 bits; the rows are the same for all libraries.
X = X.astype(np.float32).astype(np.float64)
LENGTHS = X[:, 0] * 2 + X[:, 3]
NAMES = np.array(["setosa", "versicolor", "virginica"])[CLASSES]
IS_FIRST = (CLASSES == 0).astype(int)
FEW = dict(n_estimators=5, n_jobs=1)
QUIET = dict(FEW, verbose=-1)

EARLY = XGBRegressor(n_estimators=60, n_jobs=1, early_stopping_rounds=1, learning_rate=1.0)
EARLY.fit(X[::2], LENGTHS[::2], eval_set=[(X[1::2], -LENGTHS[1::2])], verbose=False)

MODELS = {
    "names": ("joblib", LogisticRegression(max_iter=500).fit(X, NAMES)),
    "pipeline": ("skops", make_pipeline(
        StandardScaler(), RandomForestClassifier(5, random_state=0)).fit(X, CLASSES)),
    "xgb_three": ("json", XGBClassifier(**FEW).fit(X, CLASSES)),
    "xgb_two": ("ubj", XGBClassifier(**FEW).fit(X, IS_FIRST)),
    "xgb_softmax": ("json", XGBClassifier(objective="multi:softmax", **FEW).fit(X, CLASSES)),
    "xgb_early": ("json", EARLY),
    "lgb_three": ("txt", LGBMClassifier(**QUIET).fit(X, CLASSES)),
    "lgb_two": ("txt", LGBMClassifier(**QUIET).fit(X, IS_FIRST)),
    "lgb_value": ("txt", LGBMRegressor(**QUIET).fit(X, LENGTHS)),
}


def save(model, suffix, path):
    if suffix == "joblib":
        joblib.dump(model, path)
    elif suffix == "skops":
        skops.dump(model, path)
    elif suffix == "txt":
        model.booster_.save_model(path)
    else:
        model.save_model(path)


def main(folder):
    rows = X[::10]
    for name, (suffix, model) in MODELS.items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        save(model, suffix, version / f"model.{suffix}")
        expected = {"predict": model.predict(rows).tolist()}
        # The wrapper computes those of softmax; the file has none.
        if hasattr(model, "predict_proba") and name != "xgb_softmax":
            expected["predict_proba"] = model.predict_proba(rows).tolist()
        (folder / f"{name}.json").write_text(json.dumps(
            {"rows": rows.tolist(), "expected": expected, "suffix": suffix}))


main(pathlib.Path(sys.argv[1]))
