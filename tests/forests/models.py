"""Random models from XGBoost, LightGBM and scikit-learn, with the libraries' results for rows."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator

import lightgbm
import numpy as np
import treelite
import xgboost
from sklearn import ensemble

Rows = np.ndarray
Predict = Callable[[Rows], np.ndarray]

FEATURES = 6
#: The column of categories, in models that have one.
CATEGORY = 1
TRAINING_ROWS = 500


@dataclasses.dataclass
class Model:
    """A file with the functions of its library."""

    name: str
    format: str
    path: pathlib.Path
    predict: Predict | None
    margins: Predict | None
    #: The contributions of features, of models that are compared in this too.
    explain: Predict | None = None
    #: What treelite makes of the file; none if it can't read it or differs on purpose.
    treelite: treelite.Model | None = None
    has_missing: bool = True
    has_categories: bool = False
    #: Rows may have categories that no training row had.
    has_unknown: bool = True


def random_rows(random: np.random.Generator, count: int, model: Model | None = None) -> Rows:
    """Rows in which some values are missing, zero, or equal to thresholds."""
    rows = random.normal(size=(count, FEATURES)).astype(np.float32)
    # There are only a few different values, so thresholds are met exactly.
    rows[:, 3] = np.round(rows[:, 3] * 4) / 4
    rows[:, 4] = np.maximum(rows[:, 4], 0)
    if model is None or model.has_categories:
        rows[:, CATEGORY] = random.integers(0, 40, count)
    if model is not None and model.has_categories and model.has_unknown:
        # Categories that don't occur in any training row.
        rows[: count // 50, CATEGORY] = random.choice([-1, 50, 1000, 3e6, 1e9], count // 50)
    if model is None or model.has_missing:
        rows[random.random(rows.shape) < 0.1] = np.nan
    return rows


def training(random: np.random.Generator) -> tuple[Rows, np.ndarray]:
    """Rows, each with a number that depends on all columns."""
    rows = random_rows(random, TRAINING_ROWS)
    full = np.nan_to_num(rows)
    score = full[:, 0] * full[:, 2] + np.sin(full[:, CATEGORY]) + full[:, 3] - full[:, 4] ** 2
    return rows, score + random.normal(size=len(rows)) * 0.2


def classes_of(score: np.ndarray, count: int) -> np.ndarray:
    return np.digitize(score, np.quantile(score, np.linspace(0, 1, count + 1)[1:-1]))


# XGBoost ------------------------------------------------------------------------------------

XGBOOST: dict[str, dict] = {
    "squarederror": dict(objective="reg:squarederror"),
    "squarederror_base": dict(objective="reg:squarederror", base_score=3.25),
    "reg_logistic": dict(objective="reg:logistic"),
    "absoluteerror": dict(objective="reg:absoluteerror"),
    "quantileerror": dict(objective="reg:quantileerror", quantile_alpha=[0.2, 0.5, 0.9]),
    "pseudohuber": dict(objective="reg:pseudohubererror"),
    "squaredlog": dict(objective="reg:squaredlogerror"),
    "gamma": dict(objective="reg:gamma"),
    "tweedie": dict(objective="reg:tweedie"),
    "poisson": dict(objective="count:poisson"),
    "cox": dict(objective="survival:cox"),
    "aft": dict(objective="survival:aft"),
    "logistic": dict(objective="binary:logistic"),
    "logistic_base": dict(objective="binary:logistic", base_score=0.2),
    "logitraw": dict(objective="binary:logitraw"),
    "hinge": dict(objective="binary:hinge"),
    "softprob": dict(objective="multi:softprob", num_class=4),
    "softmax": dict(objective="multi:softmax", num_class=3),
    "vector_classes": dict(
        objective="multi:softprob", num_class=4, multi_strategy="multi_output_tree"),
    "targets": dict(objective="reg:squarederror"),
    "vector_targets": dict(objective="reg:squarederror", multi_strategy="multi_output_tree"),
    "pairwise": dict(objective="rank:pairwise"),
    "ndcg": dict(objective="rank:ndcg"),
    "dart": dict(objective="binary:logistic", booster="dart", rate_drop=0.3),
    "random_forest": dict(objective="binary:logistic", num_parallel_tree=5, subsample=0.6,
                          colsample_bynode=0.6, eta=1.0),
    "forest_of_classes": dict(objective="multi:softprob", num_class=3, num_parallel_tree=3,
                              subsample=0.6, eta=1.0),
    "categories_one": dict(objective="binary:logistic", max_cat_to_onehot=100),
    "categories_many": dict(objective="reg:squarederror", max_cat_to_onehot=2),
    "deep": dict(objective="reg:squarederror", max_depth=14, min_child_weight=0),
    "stump": dict(objective="reg:squarederror", max_depth=1),
}
#: XGBoost predicts the class itself.
NO_PREDICTION = {"softmax"}
#: Contributions are for one target.
SEVERAL_TARGETS = {"quantileerror", "targets"}


def xgboost_label(name: str, objective: str, score: np.ndarray, settings: dict) -> np.ndarray:
    if "num_class" in settings:
        return classes_of(score, settings["num_class"])
    if name.endswith("targets"):
        return np.stack([score, score**2, -score], axis=1)
    kind = objective.partition(":")[0]
    if kind == "binary" or objective == "reg:logistic":
        return classes_of(score, 2)
    if objective == "reg:squarederror" or objective == "reg:absoluteerror":
        return score
    if kind == "rank":
        return classes_of(score, 5)
    return np.exp(score / 4)


def xgboost_models(folder: pathlib.Path, rounds: int, only: set[str]) -> Iterator[Model]:
    for index, (name, settings) in enumerate(XGBOOST.items()):
        if only and f"xgboost_{name}" not in only:
            continue
        random = np.random.default_rng(index)
        rows, score = training(random)
        has_categories = name.startswith("categories")
        types = ["c" if has_categories and i == CATEGORY else "q" for i in range(FEATURES)]
        matrix = lambda rows, types=types: xgboost.DMatrix(  # noqa: E731
            rows, feature_types=types, enable_categorical=True)
        data = matrix(rows)
        label = xgboost_label(name, settings["objective"], score, settings)
        data.set_label(label)
        if settings["objective"].startswith("rank"):
            data.set_group([20] * (TRAINING_ROWS // 20))
        if name == "aft":
            data.set_float_info("label_lower_bound", label)
            data.set_float_info("label_upper_bound", label * 1.5)
        parameters = dict(max_depth=4, nthread=1, tree_method="hist", seed=index) | settings
        booster = xgboost.train(parameters, data, rounds)
        for suffix, kind in (("json", "xgboost_json"), ("ubj", "xgboost_ubj")):
            path = folder / f"xgboost_{name}.{suffix}"
            booster.save_model(path)
            load = treelite.frontend.load_xgboost_model
            explains = name not in SEVERAL_TARGETS and not name.startswith("vector")
            yield Model(
                f"xgboost_{name}", kind, path,
                None if name in NO_PREDICTION else (
                    lambda rows, b=booster, m=matrix: b.predict(m(rows))),
                lambda rows, b=booster, m=matrix: b.predict(m(rows), output_margin=True),
                (lambda rows, b=booster, m=matrix: b.predict(m(rows), pred_contribs=True))
                if explains else None,
                load(path, format_choice="ubjson" if suffix == "ubj" else "json"),
                has_categories=has_categories,
            )


# LightGBM -----------------------------------------------------------------------------------

LIGHTGBM: dict[str, dict] = {
    "regression": dict(objective="regression"),
    "sqrt": dict(objective="regression", reg_sqrt=True),
    "l1": dict(objective="regression_l1"),
    "huber": dict(objective="huber"),
    "fair": dict(objective="fair"),
    "quantile": dict(objective="quantile"),
    "mape": dict(objective="mape"),
    "poisson": dict(objective="poisson"),
    "gamma": dict(objective="gamma"),
    "tweedie": dict(objective="tweedie"),
    "binary": dict(objective="binary"),
    "binary_sigmoid": dict(objective="binary", sigmoid=0.7),
    "multiclass": dict(objective="multiclass", num_class=4),
    "multiclassova": dict(objective="multiclassova", num_class=3, sigmoid=1.5),
    "cross_entropy": dict(objective="cross_entropy"),
    "cross_entropy_lambda": dict(objective="cross_entropy_lambda"),
    "lambdarank": dict(objective="lambdarank"),
    "rank_xendcg": dict(objective="rank_xendcg"),
    "random_forest": dict(objective="binary", boosting="rf", bagging_freq=1,
                          bagging_fraction=0.6),
    "dart": dict(objective="regression", boosting="dart"),
    "goss": dict(objective="regression", data_sample_strategy="goss"),
    "categories": dict(objective="binary", min_data_per_group=1, cat_smooth=0.1),
    "categories_one": dict(objective="regression", max_cat_to_onehot=100),
    "zero_as_missing": dict(objective="regression", zero_as_missing=True),
    "without_missing": dict(objective="regression", use_missing=False),
    "deep": dict(objective="regression", num_leaves=200, min_data_in_leaf=1),
}


#: Treelite compares a zero with the threshold where LightGBM calls it missing.
ZERO_IS_ZERO = {"zero_as_missing"}


def lightgbm_models(folder: pathlib.Path, rounds: int, only: set[str]) -> Iterator[Model]:
    for index, (name, settings) in enumerate(LIGHTGBM.items()):
        if only and f"lightgbm_{name}" not in only:
            continue
        rows, score = training(np.random.default_rng(100 + index))
        objective = settings["objective"]
        has_categories = name.startswith("categories")
        if "num_class" in settings:
            label = classes_of(score, settings["num_class"])
        elif objective in ("binary", "cross_entropy", "cross_entropy_lambda"):
            label = classes_of(score, 2)
        elif "rank" in objective:
            label = classes_of(score, 5)
        elif objective in ("poisson", "gamma", "tweedie"):
            label = np.exp(score / 4)
        else:
            label = score
        group = [20] * (TRAINING_ROWS // 20) if "rank" in objective else None
        data = lightgbm.Dataset(
            rows, label, group=group,
            categorical_feature=[CATEGORY] if has_categories else "auto")
        parameters = dict(num_leaves=12, num_threads=1, verbose=-1, seed=index,
                          min_data_in_leaf=5) | settings
        booster = lightgbm.train(parameters, data, rounds)
        path = folder / f"lightgbm_{name}.txt"
        booster.save_model(path)
        predict = lambda rows, b=booster, **kind: b.predict(  # noqa: E731
            rows.astype(np.float64), num_threads=1, **kind)
        read = treelite.frontend.load_lightgbm_model(path)
        # Sums and contributions of random forests are not averaged.
        is_average = name == "random_forest"
        model = Model(
            f"lightgbm_{name}", "lightgbm", path, predict,
            None if is_average else lambda rows, p=predict: p(rows, raw_score=True),
            None if is_average else lambda rows, p=predict: p(rows, pred_contrib=True),
            read, has_categories=has_categories,
        )
        checkpoint = path.with_suffix(".tl")
        read.serialize(checkpoint)
        if name in ZERO_IS_ZERO:
            yield dataclasses.replace(model, treelite=None)
            model = dataclasses.replace(model, predict=None, margins=None, explain=None)
        else:
            yield model
        yield dataclasses.replace(model, format="treelite_checkpoint", path=checkpoint)


# scikit-learn, by treelite's checkpoints ------------------------------------------------------

SKLEARN: dict[str, Callable] = {
    "forest_regressor": lambda n: ensemble.RandomForestRegressor(n, max_depth=8),
    "forest_targets": lambda n: ensemble.RandomForestRegressor(n, max_depth=5),
    "forest_two": lambda n: ensemble.RandomForestClassifier(n, max_depth=8),
    "forest_classes": lambda n: ensemble.RandomForestClassifier(n, max_depth=5),
    "extra_regressor": lambda n: ensemble.ExtraTreesRegressor(n, max_depth=9),
    "extra_classes": lambda n: ensemble.ExtraTreesClassifier(n, max_depth=9),
    "boosting_regressor": lambda n: ensemble.GradientBoostingRegressor(n_estimators=n),
    "boosting_two": lambda n: ensemble.GradientBoostingClassifier(n_estimators=n, init="zero"),
    "boosting_classes": lambda n: ensemble.GradientBoostingClassifier(n_estimators=n, init="zero"),
    "histogram_regressor": lambda n: ensemble.HistGradientBoostingRegressor(max_iter=n),
    "histogram_two": lambda n: ensemble.HistGradientBoostingClassifier(
        max_iter=n, categorical_features=[CATEGORY]),
    "histogram_classes": lambda n: ensemble.HistGradientBoostingClassifier(max_iter=n),
    "isolation": lambda n: ensemble.IsolationForest(n_estimators=n, max_samples=64),
}


def sklearn_models(folder: pathlib.Path, rounds: int, only: set[str]) -> Iterator[Model]:
    for index, (name, make) in enumerate(SKLEARN.items()):
        if only and f"sklearn_{name}" not in only:
            continue
        rows, score = training(np.random.default_rng(200 + index))
        has_missing = name.startswith("histogram")
        rows = rows if has_missing else np.nan_to_num(rows)
        if name.endswith("two") or name.endswith("classes"):
            label = classes_of(score, 2 if name.endswith("two") else 4)
        else:
            label = np.stack([score, -score], axis=1) if name.endswith("targets") else score
        estimator = make(rounds)
        estimator.set_params(random_state=index)
        estimator.fit(rows.astype(np.float64), label)
        read = treelite.sklearn.import_model(estimator)
        path = folder / f"sklearn_{name}.tl"
        read.serialize(path)
        yield Model(
            f"sklearn_{name}", "treelite_checkpoint", path, sklearn_predict(name, estimator),
            None, None, read, has_missing=has_missing, has_categories=name == "histogram_two",
            # scikit-learn treats these as missing, and treelite sends them to the right.
            has_unknown=False,
        )


def sklearn_predict(name: str, estimator) -> Predict:
    def predict(rows: Rows) -> np.ndarray:
        rows = rows.astype(np.float64)
        if name == "isolation":
            return -estimator.score_samples(rows)
        if name.endswith("classes"):
            return estimator.predict_proba(rows)
        if name.endswith("two"):
            # A forest has a leaf value for each class, and boosting has one for both.
            probabilities = estimator.predict_proba(rows)
            return probabilities if name.startswith("forest") else probabilities[:, 1]
        return estimator.predict(rows)
    return predict


def all_models(folder: pathlib.Path, rounds: int, only: set[str]) -> Iterator[Model]:
    """Trains and writes all models, or those that are named."""
    yield from xgboost_models(folder, rounds, only)
    yield from lightgbm_models(folder, rounds, only)
    yield from sklearn_models(folder, rounds, only)
