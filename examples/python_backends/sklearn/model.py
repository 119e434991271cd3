"""A backend for scikit-learn, XGBoost and LightGBM models, which need no code of their own.

Copy this file to BACKENDS/sklearn/model.py, where BACKENDS is the server's backend directory. A
model is then a directory with one file, whose name determines the library that reads it, and a
config.pbtxt with the line `backend: "sklearn"`:

    model.skops                 scikit-learn, saved by skops
    model.joblib                scikit-learn, saved by joblib. DANGEROUS: such a file runs
                                whatever code its author put into it
    model.json or model.ubj     XGBoost
    model.txt                   LightGBM

The input `input` has a number for each feature. The output `predict` is the class or the value.
Classifiers also have a second output, `predict_proba`. Waiting requests share a call. The
configuration parameter SKOPS_TRUSTED names types, separated by commas, that a skops file may
contain in addition to those that skops trusts.

It works in Galatea and in Triton's Python backend.
"""

import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

INPUT, PREDICT, PROBABILITIES = "input", "predict", "predict_proba"
TRUSTED = "SKOPS_TRUSTED"
#: The largest batch of models whose configuration says none.
MAX_BATCH_SIZE = 64

TYPES = {"b": "TYPE_BOOL", "U": "TYPE_STRING", "S": "TYPE_STRING", "O": "TYPE_STRING",
         "f4": "TYPE_FP32", "f8": "TYPE_FP64", "i4": "TYPE_INT32", "i8": "TYPE_INT64"}


class ScikitLearn:
    """An estimator or a pipeline."""

    datatype = "TYPE_FP64"

    def __init__(self, path, config):
        if path.endswith(".skops"):
            from skops.io import load
            trusted = config.get("parameters", {}).get(TRUSTED, {}).get("string_value", "")
            names = [name.strip() for name in trusted.split(",") if name.strip()]
            self._model = load(path, trusted=names)
        else:
            from joblib import load
            self._model = load(path)
        if not hasattr(self._model, "predict"):
            raise ValueError(f"it holds a {type(self._model).__name__}, which has no predict")
        if not hasattr(self._model, "n_features_in_"):
            raise ValueError("its model has no n_features_in_, so the number of features "
                             "isn't known: fit it on an array of numbers")
        self.features = int(self._model.n_features_in_)

    def predict(self, rows, names):
        """The outputs with these names."""
        found = {}
        if PREDICT in names:
            found[PREDICT] = np.asarray(self._model.predict(rows))
        if PROBABILITIES in names and hasattr(self._model, "predict_proba"):
            probabilities = self._model.predict_proba(rows)
            # Classifiers with several outputs return a list, which no single tensor can contain.
            if isinstance(probabilities, np.ndarray):
                found[PROBABILITIES] = probabilities
        return found


class Trees:
    """The common parts of both libraries' boosted trees, whose results are numbers."""

    #: What the results of an objective are: probabilities of the second class of two, or of
    #: each class, or class numbers. Others are values.
    two_classes = many_classes = class_numbers = ()

    def predict(self, rows, names):
        """The outputs with these names."""
        result = np.asarray(self._call(rows))
        if self.objective in self.two_classes:
            result = np.stack([1 - result, result], axis=1)
        elif self.objective in self.class_numbers:
            return {PREDICT: result.astype(np.int64)}
        elif self.objective not in self.many_classes:
            return {PREDICT: result}
        return {PREDICT: result.argmax(axis=1).astype(np.int64), PROBABILITIES: result}


class XGBoost(Trees):
    """A booster, including that of `XGBClassifier` and `XGBRegressor`."""

    datatype = "TYPE_FP32"
    two_classes = ("binary:logistic",)
    many_classes = ("multi:softprob",)
    class_numbers = ("multi:softmax", "binary:hinge")

    def __init__(self, path, config):
        import xgboost
        self._booster = xgboost.Booster(model_file=path)
        self.features = self._booster.num_features()
        settings = json.loads(self._booster.save_config())
        self.objective = settings["learner"]["objective"]["name"]
        # Training that stopped early leaves trees that aren't used.
        best = self._booster.attr("best_iteration")
        self._range = (0, int(best) + 1) if best is not None else (0, 0)

    def _call(self, rows):
        return self._booster.inplace_predict(rows, iteration_range=self._range)


class LightGBM(Trees):
    """A booster, including that of `LGBMClassifier` and `LGBMRegressor`."""

    datatype = "TYPE_FP64"
    two_classes = ("binary",)
    many_classes = ("multiclass", "multiclassova")

    def __init__(self, path, config):
        import lightgbm
        self._booster = lightgbm.Booster(model_file=path)
        self.features = self._booster.num_feature()
        self.objective = _header(path).get("objective", "").partition(" ")[0]

    def _call(self, rows):
        return self._booster.predict(rows)


def _header(path):
    """The settings before the first tree of LightGBM's text."""
    found = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            key, _, value = line.strip().partition("=")
            if key == "Tree":
                break
            found[key] = value
    return found


LIBRARIES = {"model.skops": ScikitLearn, "model.joblib": ScikitLearn, "model.json": XGBoost,
             "model.ubj": XGBoost, "model.txt": LightGBM}


def load(folder, config):
    """The model in a version's directory; errors name the file."""
    names = [name for name in LIBRARIES if os.path.isfile(os.path.join(folder, name))]
    if len(names) != 1:
        found = " and ".join(names) or "none of them"
        raise ValueError(f"'{folder}' must have one of {', '.join(LIBRARIES)}, but has {found}")
    path = os.path.join(folder, names[0])
    try:
        return LIBRARIES[names[0]](path, config)
    except Exception as error:
        raise ValueError(f"'{path}' can't be loaded: {type(error).__name__}: {error}") from error


def tensors(model, rows, names):
    """The outputs for some rows, each with two dimensions, the first of which is the rows."""
    found = {}
    for name, array in model.predict(rows, names).items():
        if array.dtype.kind in "US":
            array = array.astype(np.object_)
        found[name] = array.reshape(len(rows), -1)
    return found


class TritonPythonModel:
    """A model of one of the libraries."""

    @staticmethod
    def auto_complete_config(config):
        """Uses the model itself: a row of zeros shows what its outputs are."""
        given = config.as_dict()
        model = load(pb_utils.get_model_dir(), given)
        present = pb_utils.get_input_config_by_name(given, INPUT) or {}
        datatype = present.get("data_type", "TYPE_INVALID")
        datatype = model.datatype if datatype == "TYPE_INVALID" else datatype
        config.add_input({"name": INPUT, "data_type": datatype, "dims": [model.features]})
        zeros = np.zeros((1, model.features), pb_utils.triton_string_to_numpy(datatype))
        for name, array in tensors(model, zeros, (PREDICT, PROBABILITIES)).items():
            kind = array.dtype
            datatype = TYPES.get(kind.kind) or TYPES.get(f"{kind.kind}{kind.itemsize}")
            if datatype is None:
                raise ValueError(f"{name} of '{pb_utils.get_model_dir()}' gives {kind}, which "
                                 "is no data type of an output")
            config.add_output({"name": name, "data_type": datatype, "dims": [array.shape[1]]})
        config.set_max_batch_size(given["max_batch_size"] or MAX_BATCH_SIZE)
        if "sequence_batching" not in given:
            config.set_dynamic_batching()
        return config

    def initialize(self, args):
        """Loads the model."""
        folder = os.path.join(args["model_repository"], args["model_version"])
        self._model = load(folder, json.loads(args["model_config"]))

    def execute(self, requests):
        """Predicts the rows of all requests in a single call."""
        names = set().union(*(request.requested_output_names() for request in requests))
        parts = [pb_utils.get_input_tensor_by_name(request, INPUT).as_numpy()
                 for request in requests]
        found = tensors(self._model, np.concatenate(parts), names)
        responses, begin = [], 0
        for part in parts:
            end = begin + len(part)
            outputs = [pb_utils.Tensor(name, array[begin:end]) for name, array in found.items()]
            responses.append(pb_utils.InferenceResponse(outputs))
            begin = end
        return responses
