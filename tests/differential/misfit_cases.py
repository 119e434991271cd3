"""Ensembles whose steps don't fit: models that fail before they have a version."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping

from cases import Case

#: Nothing is loaded until a case asks for it.
FLAGS = ("--model-control-mode=explicit",)

Maps = tuple[str, Mapping[str, str], Mapping[str, str]]


def tensors(kind: str, **given: str) -> str:
    """The inputs or outputs of a model, each with a type and dimensions."""
    return "".join(
        f'{kind} {{ name: "{name}" data_type: TYPE_{text.split()[0]} dims: {text.split()[1]} '
        f"{' '.join(text.split()[2:])} }}\n"
        for name, text in given.items()
    )


def plain(batch: int = 8, dims: str = "[-1]", kind: str = "FP32", more: str = "") -> str:
    """A model that returns its input."""
    text = f"{kind} {dims}"
    return (
        f'backend: "identity" max_batch_size: {batch}\n'
        f"{tensors('input', INPUT0=text)}{tensors('output', OUTPUT0=text)}{more}\n"
    )


def pair(more: str = "") -> str:
    """A model that returns its two inputs; `more` belongs to the second."""
    return (
        'backend: "identity" max_batch_size: 8\n'
        + tensors("input", INPUT0="FP32 [-1]", INPUT1=f"FP32 [-1] {more}")
        + tensors("output", OUTPUT0="FP32 [-1]", OUTPUT1="FP32 [-1]")
    )


def ensemble(
    *steps: Maps, batch: int = 8, ins: str = "FP32 [-1]", outs: str = "FP32 [-1]", more: str = ""
) -> str:
    """An ensemble from I to O; each step has a model and its two maps."""
    return (
        f'platform: "ensemble" max_batch_size: {batch}\n'
        f"{tensors('input', I=ins)}{tensors('output', O=outs)}{more}\n"
        "ensemble_scheduling {\n" + "".join(map(step_text, steps)) + "}\n"
    )


def step_text(step: Maps) -> str:
    """A step; the version is after the model's name, if there is one."""
    model, ins, outs = step
    name, _, version = model.partition(":")
    maps = {"input_map": ins, "output_map": outs}
    entries = [
        f'{field} {{ key: "{key}" value: "{value}" }}'
        for field, entries in maps.items()
        for key, value in entries.items()
    ]
    version = version or "-1"
    return f'step {{ model_name: "{name}" model_version: {version} {" ".join(entries)} }}\n'


def through(model: str, source: str = "I", target: str = "O") -> Maps:
    """A step of a model with one input and output."""
    return model, {"INPUT0": source}, {"OUTPUT0": target}


DECOUPLED = "model_transaction_policy { decoupled: true }"

MODELS = {
    "plain": plain(),
    "narrow": plain(batch=4),
    "three": plain(dims="[3]"),
    "matrix": plain(dims="[-1,-1]"),
    "integers": plain(kind="INT32"),
    "unbatched": plain(batch=0),
    "unbatched_rows": plain(batch=0, dims="[-1,4]"),
    "pair": pair(),
    "optional_pair": pair("optional: true"),
    "talks_a": plain(more=DECOUPLED),
    "talks_b": plain(more=DECOUPLED),
}

#: Ensembles that serve.
FITTING = {
    "fits": ensemble(through("plain", "I", "x"), through("plain", "x", "O")),
    "fits_wildcard": ensemble(through("three")),
    "fits_without_batches": ensemble(through("unbatched_rows"), ins="FP32 [4]", outs="FP32 [4]"),
    "fits_optional": ensemble(("optional_pair", {"INPUT0": "I"}, {"OUTPUT0": "O"})),
    "fits_reshape": ensemble(
        through("three"), ins="FP32 [1,3] reshape: { shape: [3] }",
        outs="FP32 [1,3] reshape: { shape: [3] }",
    ),
    "fits_any_rank": ensemble(through("unbatched")),
    "fits_batches": ensemble(through("plain"), batch=0),
    "fits_decoupled": ensemble(through("talks_a", "I", "x"), through("plain", "x", "O")),
}

#: Ensembles that don't fit, each with one mistake.
MISFITS = {
    "batch": ensemble(through("narrow")),
    "type_in": ensemble(through("integers")),
    "type_out": ensemble(through("plain"), outs="INT32 [-1]"),
    "type_between": ensemble(
        through("plain", "I", "x"), through("integers", "x", "y"),
        ("pair", {"INPUT0": "I", "INPUT1": "y"}, {"OUTPUT0": "O"}),
    ),
    "shape_in": ensemble(through("three"), ins="FP32 [4]"),
    "shape_out": ensemble(through("three"), outs="FP32 [4]"),
    "shape_rank": ensemble(through("matrix")),
    "shape_between": ensemble(through("three", "I", "x"), through("matrix", "x", "O")),
    "shape_reshape": ensemble(through("three"), ins="FP32 [3] reshape: { shape: [1,3] }"),
    "no_such_input": ensemble(("plain", {"INPUT9": "I"}, {"OUTPUT0": "O"})),
    "no_such_output": ensemble(("plain", {"INPUT0": "I"}, {"OUTPUT9": "O"})),
    "input_left_out": ensemble(("pair", {"INPUT0": "I"}, {"OUTPUT0": "O"})),
    "two_sources": ensemble(
        through("talks_a", "I", "a"), through("talks_b", "I", "b"),
        ("pair", {"INPUT0": "a", "INPUT1": "b"}, {"OUTPUT0": "O"}),
    ),
    "two_sources_between": ensemble(
        through("talks_a", "I", "a"), through("talks_b", "I", "b"),
        ("pair", {"INPUT0": "a", "INPUT1": "b"}, {"OUTPUT0": "x"}), through("plain", "x", "O"),
    ),
    "two_sources_read_first": ensemble(
        through("plain", "x", "O"), through("talks_a", "I", "a"), through("talks_b", "I", "b"),
        ("pair", {"INPUT0": "a", "INPUT1": "b"}, {"OUTPUT0": "x"}),
    ),
    "two_outputs": ensemble(
        through("talks_a", "I", "O"), through("talks_b", "I", "P"),
        more=tensors("output", P="FP32 [-1]"),
    ),
    # There are several errors, and one is reported.
    "input_and_type": ensemble(
        ("pair", {"INPUT0": "I"}, {"OUTPUT0": "O"}), ins="INT32 [-1]", outs="INT32 [-1]"
    ),
    "unknown_and_type": ensemble(
        ("plain", {"INPUT0": "I", "INPUT9": "I"}, {"OUTPUT0": "O"}), ins="INT32 [-1]"
    ),
    "left_out_and_outputs": ensemble(("pair", {"INPUT1": "I"}, {"OUTPUT9": "O"})),
    "outputs_and_type": ensemble(("pair", {"INPUT0": "I", "INPUT1": "I"},
                                  {"OUTPUT0": "O", "OUTPUT9": "x"}),
                                 through("plain", "x", "P"), outs="INT32 [-1]",
                                 more=tensors("output", P="FP32 [-1]")),
    "batch_of_the_second": ensemble(
        through("integers", "I", "x"), through("narrow", "x", "O"), ins="INT32 [-1]"
    ),
    "no_such_version": ensemble(through("plain:7")),
    # None of them is served either.
    "of_a_misfit": ensemble(through("batch")),
    "of_a_misfit_of_a_misfit": ensemble(through("of_a_misfit")),
    "of_no_such_version": ensemble(through("no_such_version")),
}
#: The reasons where the servers differ.
AGAIN = "Triton answers a repeated load by whether there was a version once"
SKIPPED = "Triton takes the failed change for the one that serves, and does nothing"

#: It is loaded, though its first step makes what it takes. Triton never answers a request.
ENDLESS = {"endless": ensemble(through("plain", "I", "I"), through("plain"))}

#: As `batch`, but without a version.
WITHOUT_VERSION = "batch_without_version"


def write_models(root: pathlib.Path) -> None:
    """Models and ensembles, one version each."""
    for name, text in {**MODELS, **FITTING, **MISFITS, **ENDLESS}.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    (root / WITHOUT_VERSION).mkdir()
    (root / WITHOUT_VERSION / "config.pbtxt").write_text(MISFITS["batch"])


def load(model: str, config: str = "") -> Case:
    """Loads a model, optionally with another configuration."""
    body = json.dumps({"parameters": {"config": config}} if config else {}).encode()
    path = f"/v2/repository/models/{model}/load"
    name = f"load {model}" + (", changed" if config else "")
    return Case(name, "POST", path, body=body, as_text=True)


def documents(model: str, when: str) -> Iterator[Case]:
    """The information about a model."""
    yield Case(f"config of {model} {when}", path=f"/v2/models/{model}/config", as_text=True)
    yield Case(f"metadata of {model} {when}", path=f"/v2/models/{model}")
    yield Case(f"version 1 of {model} {when}", path=f"/v2/models/{model}/versions/1")
    yield Case(f"ready {model} {when}", path=f"/v2/models/{model}/ready")
    yield Case(f"statistics of {model} {when}", path=f"/v2/models/{model}/stats")
    yield Case(
        f"infer {model} {when}", "POST", f"/v2/models/{model}/infer",
        body=b'{"inputs":[{"name":"I","shape":[1,1],"datatype":"FP32","data":[1]}]}',
    )


def index(when: str) -> Case:
    """The index of the repository."""
    return Case(f"index {when}", "POST", "/v2/repository/index", body=b"{}")


#: A configuration that comes with a load of an ensemble and doesn't fit.
CHANGED = {
    "platform": "ensemble",
    "max_batch_size": 8,
    "input": [{"name": "I", "data_type": "TYPE_INT32", "dims": [-1]}],
    "output": [{"name": "O", "data_type": "TYPE_FP32", "dims": [-1]}],
    "ensemble_scheduling": {
        "step": [
            {
                "model_name": "plain",
                "model_version": -1,
                "input_map": {"INPUT0": "I"},
                "output_map": {"OUTPUT0": "O"},
            }
        ]
    },
}


def misfit_cases() -> Iterator[Case]:
    """All cases of the suite, in order."""
    for name in FITTING:
        yield load(name)
        yield Case(f"ready {name}", path=f"/v2/models/{name}/ready")
    for name in [*ENDLESS, *MISFITS, WITHOUT_VERSION]:
        yield load(name)
    yield Case("metadata of endless", path="/v2/models/endless")
    yield Case("ready endless", path="/v2/models/endless/ready")
    yield index("after the loads")
    message = {"model_name": "type_in"}
    yield Case("grpc load again", rpc="RepositoryModelLoad", message=message,
               ours=AGAIN, ours_status="INVALID_ARGUMENT")
    yield Case("grpc index", rpc="RepositoryIndex", message={})
    for name in ("batch", "two_outputs", "of_a_misfit"):
        yield from documents(name, "after its load")
        yield Case(f"grpc metadata of {name}", rpc="ModelMetadata", message={"name": name})
    yield Case("server is ready", path="/v2/health/ready")
    yield Case("unload batch", "POST", "/v2/repository/models/batch/unload", body=b"{}")
    yield index("after an unload")
    yield load("fits", json.dumps(CHANGED))
    yield from documents("fits", "after a change that doesn't fit")
    path = "/v2/repository/models/fits/load"
    yield Case("load fits as it was", "POST", path, body=b"{}")
    yield Case("ready fits as it was", path="/v2/models/fits/ready", ours=SKIPPED, ours_status=200)
