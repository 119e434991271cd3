"""The user's model: import of model.py, its class and its optional methods."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict

from . import state
from .config import ModelConfig
from .errors import BackendError, format_exception

#: The prefix of the import system's file names; its frames reveal nothing about the model.
_IMPORT_FILES = ("<frozen importlib",)
#: The length beyond which source lines are not shown.
_SOURCE_LENGTH_MAX = 512


def import_model(setup: Dict[str, Any]) -> Any:
    """Imports model.py and gives its module."""
    path = setup["model_path"]
    args = setup.get("args") or {}
    state.model_dir = setup.get("model_dir") or _model_dir(path, args)
    if "supplied" in setup:
        return _import_supplied(setup)
    name = os.path.basename(path)
    if not name.endswith(".py"):
        raise BackendError(f"Model name must end with '.py'. Model name is \"{name}\".")
    if not os.path.exists(path):
        raise BackendError(f"Python model file not found in '{path}'")
    _add_folders(setup)
    folder = os.path.dirname(path)
    module = name[:-3]
    if os.path.dirname(folder) in sys.path:
        module = os.path.basename(folder) + "." + module
    return _import(module, path)


def _import_supplied(setup: Dict[str, Any]) -> Any:
    """Imports a script that the server sent, in place of model.py."""
    supplied = setup["supplied"]
    for finder in sys.meta_path:
        sources = getattr(finder, "sources", None)
        if isinstance(sources, dict) and __name__ in sources:
            sources.update(supplied["sources"])
    _add_folders(setup)
    return __import__(supplied["module"])


def _add_folders(setup: Dict[str, Any]) -> None:
    for folder in setup.get("module_paths") or ():
        if folder not in sys.path:
            sys.path.append(folder)
    import triton_python_backend_utils  # noqa: F401  the public module is there first


def _model_dir(path: str, args: Dict[str, str]) -> str:
    """Directory of the version of the model."""
    repository = args.get("model_repository")
    version = args.get("model_version")
    if repository and version:
        return os.path.join(repository, version)
    return os.path.dirname(path)


def _import(name: str, path: str) -> Any:
    """Imports a module by name, or from its file if the name means another one."""
    import importlib.util
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin and os.path.exists(spec.origin) \
            and os.path.samefile(spec.origin, path):
        # Done as in PyImport_ImportModule, so that error texts show the same frames.
        return __import__(name, None, None, ["__doc__"], 0)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _model_class(module: Any, setup: Dict[str, Any]) -> Any:
    """Returns the model's class; creates one for a file that only has a function."""
    if "supplied" in setup:
        return module.model_class(setup.get("job"))
    if not hasattr(module, "TritonPythonModel") and callable(getattr(module, "predict", None)):
        from . import function
        return function.model_class(module)
    try:
        return module.TritonPythonModel
    except AttributeError as error:
        place = _shown_path(setup["model_path"], setup)
        raise BackendError(f"AttributeError: {error}\n\n{place} has neither a class "
                           "TritonPythonModel nor a function predict") from None


def failure_text(error: BaseException, setup: Dict[str, Any]) -> str:
    """Text of an exception that keeps a model from being loaded.

    Triton's text comes first, followed by the line of a syntax error.
    """
    text = format_exception(error, _IMPORT_FILES)
    if isinstance(error, SyntaxError) and isinstance(error.filename, str):
        text += "\n\n" + _source(error, setup)
    return text


def _source(error: SyntaxError, setup: Dict[str, Any]) -> str:
    """Path, line and source of a syntax error, as Python shows them."""
    import traceback
    line = error.text
    if line is not None and len(line) > _SOURCE_LENGTH_MAX:
        line = None
    place = _shown_path(error.filename, setup)
    shown = SyntaxError(error.msg, (place, error.lineno, error.offset, line))
    text = "".join(traceback.format_exception_only(SyntaxError, shown)[:-1]).rstrip()
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _shown_path(path: str, setup: Dict[str, Any]) -> str:
    """Path as the user knows it: relative to the repository if it is in the model's directory."""
    args = setup.get("args") or {}
    folder = args.get("model_repository") or os.path.dirname(os.path.dirname(path))
    relative = os.path.relpath(path, folder)
    if not os.path.isabs(path) or relative.startswith(os.pardir):
        return path
    return os.path.join(args.get("model_name") or os.path.basename(folder), relative)


def auto_complete(setup: Dict[str, Any]) -> Dict[str, Any]:
    """Runs `auto_complete_config`; returns the parts of the configuration that it changed."""
    module = import_model(setup)
    if setup.get("job") is not None:
        description: Dict[str, Any] = module.describe(setup["job"])
        return description
    before = setup["config"]
    config: Any = ModelConfig(json.dumps(before))
    model_class = _model_class(module, setup)
    if hasattr(model_class, "auto_complete_config"):
        config = model_class.auto_complete_config(config)
    if not isinstance(config, ModelConfig):
        name = before.get("name") or state.model_name
        raise BackendError(
            f"auto_complete_config function in model '{name}' must return a valid "
            "pb.ModelConfig object.")
    after = json.loads(json.dumps(config._model_config))
    return {key: value for key, value in after.items()
            if key not in before or before[key] != value}


def initialize(setup: Dict[str, Any]) -> Any:
    """Creates the model and calls its `initialize`."""
    module = import_model(setup)
    model = _model_class(module, setup)()
    if hasattr(model, "initialize"):
        model.initialize(dict(setup.get("args") or {}))
    return model


def output_names(args: Dict[str, str]) -> Any:
    """Names of the outputs of the model's configuration, None if it isn't known."""
    try:
        config = json.loads(args.get("model_config") or "")
        return frozenset(output["name"] for output in config["output"])
    except (ValueError, KeyError, TypeError):
        return None
