"""Finds the files of a model version by the rules of Triton's script."""

from __future__ import annotations

import os
import zipfile
from typing import Any, Dict

from galatea_worker.errors import TritonModelException


def model_file(config: Dict[str, Any], folder: str) -> str:
    """Returns the path of the first candidate model file that exists.

    Like Triton, the server completes the configuration with the file name model.pt. A weights file
    next to model.py has the same name and is skipped. Triton's script doesn't know model.pt2.
    """
    names = ["model.py", "model.pt", "model.pt2"]
    if config.get("default_model_filename"):
        names.insert(0, config["default_model_filename"])
    for name in names:
        path = os.path.join(folder, name)
        if os.path.exists(path) and not _is_weights(path):
            return path
    raise TritonModelException(f"No model found in {folder}/{names}")


def weights_file(path: str) -> str:
    """Returns the path of the weights next to a Python file, or an empty string."""
    weights = os.path.splitext(path)[0] + ".pt"
    return weights if os.path.exists(weights) else ""


def is_exported(path: str) -> bool:
    """Returns true for an exported program. A compiled model raises an error."""
    if not path.endswith(".pt2"):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        raise TritonModelException(f"'{path}' is no exported program") from None
    if any("models/" in name or name == "serialized_exported_program.json" for name in names):
        return True
    raise TritonModelException(
        f"'{path}' is no exported program. A compiled model needs the platform torch_aoti, and no "
        "runtime")


def _is_weights(path: str) -> bool:
    stem, ending = os.path.splitext(path)
    return ending == ".pt" and os.path.exists(stem + ".py") and not _is_script(path)


def _is_script(path: str) -> bool:
    """Returns true for a TorchScript model, whose archive contains constants as well as data."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False
