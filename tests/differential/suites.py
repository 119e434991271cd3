"""The suites: their cases, the models that these name, and how their server is started."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

import classification_cases  # noqa: E402
import cloud_cases  # noqa: E402
import compression_cases  # noqa: E402
import configuration_cases  # noqa: E402
import ensemble_cases  # noqa: E402
import generate_cases  # noqa: E402
import held_cases  # noqa: E402
import log_cases  # noqa: E402
import make_models  # noqa: E402
import metrics_cases  # noqa: E402
import misfit_cases  # noqa: E402
import refusal_cases  # noqa: E402
import restriction_cases  # noqa: E402
import sequence_cases  # noqa: E402
import shared_memory_cases  # noqa: E402
import statistics_cases  # noqa: E402
import trace_cases  # noqa: E402
from cases import DTYPES, Case, all_cases  # noqa: E402

ONNX_MODELS = ["simple", "mlp", "simple_string", "autocomplete"]
GOLDENS = pathlib.Path(__file__).resolve().parent / "goldens"


@dataclasses.dataclass(frozen=True)
class Suite:
    """Cases that are sent to one server, in order."""

    golden: str
    write_repository: Callable[[pathlib.Path], None]
    cases: Callable[[], list[Case]]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    flags: tuple[str, ...] = ()
    #: What clients have beside the server, by a word for the run that stands in cases as
    #: `shared_memory_cases.RUN`.
    surroundings: Callable[[str], contextlib.AbstractContextManager[None]] | None = None
    #: Flags that the recorded release lacks.
    later_flags: tuple[str, ...] = ()

    @property
    def golden_path(self) -> pathlib.Path:
        """The file with Triton's responses."""
        return GOLDENS / f"{self.golden}.json"


def write_basic_models(root: pathlib.Path) -> None:
    """Identity models for every data type, and a few ONNX models."""
    for dtype in [*DTYPES, "bytes", "bf16"]:
        kind = "TYPE_STRING" if dtype == "bytes" else f"TYPE_{dtype.upper()}"
        directory = root / f"identity_{dtype}"
        (directory / "1").mkdir(parents=True, exist_ok=True)
        (directory / "config.pbtxt").write_text(
            f'backend: "identity"\nmax_batch_size: 8\n'
            f'input [ {{ name: "INPUT0" data_type: {kind} dims: [ -1 ] }} ]\n'
            f'output [ {{ name: "OUTPUT0" data_type: {kind} dims: [ -1 ] }} ]\n'
            f"instance_group [ {{ kind: KIND_CPU count: 1 }} ]\n"
        )
    make_models.write_models(root, make_models.EXAMPLES, ONNX_MODELS)


def write_sequence_models(root: pathlib.Path) -> None:
    """Stateful and ragged models."""
    models = sequence_cases
    make_models.write_models(root, make_models.STATEFUL_MODELS, models.STATEFUL_MODELS)
    make_models.write_models(root, make_models.RAGGED_MODELS, models.RAGGED_MODELS)


def write_ensemble_models(root: pathlib.Path) -> None:
    """Ensembles with their composing models."""
    make_models.write_models(root, make_models.ENSEMBLE_MODELS, ensemble_cases.MODELS)


def _held_suite(held: held_cases.HeldBatch) -> Suite:
    return Suite(f"triton-2.51-{held.name}", held.write_repository, held.cases, held.environment)


SUITES = {
    # row: PPAR-03
    "basic": Suite("triton-2.51", write_basic_models, all_cases),
    "sequences": Suite(
        "triton-2.51-sequences", write_sequence_models, sequence_cases.sequence_cases
    ),
    # row: ENS-11
    "ensembles": Suite(
        "triton-2.51-ensembles", write_ensemble_models, ensemble_cases.ensemble_cases
    ),
    # row: ENS-07
    "misfits": Suite(
        "triton-2.51-misfits",
        misfit_cases.write_models,
        lambda: list(misfit_cases.misfit_cases()),
        flags=misfit_cases.FLAGS,
    ),
    # row: HTTP-22
    "refusals": Suite(
        "triton-2.51-refusals", refusal_cases.write_models, refusal_cases.refusal_cases
    ),
    # row: GRPC-24 SEC-01
    "restrictions": Suite(
        "triton-2.51-restrictions",
        refusal_cases.write_models,
        restriction_cases.restriction_cases,
        flags=restriction_cases.FLAGS,
    ),
    # row: PLOG-01 PLOG-02 PLOG-03
    "logging": Suite(
        "triton-2.51-logging",
        refusal_cases.write_models,
        log_cases.log_cases,
    ),
    # row: CLS-01 CLS-02 CLS-04 SHM-06
    "classification": Suite(
        "triton-2.51-classification",
        classification_cases.write_repository,
        classification_cases.classification_cases,
    ),
    # row: PCFG-01 CFG-26
    "configurations": Suite(
        "triton-2.51-configurations",
        configuration_cases.write_configurations,
        lambda: list(configuration_cases.configuration_cases()),
        flags=configuration_cases.FLAGS,
    ),
    # row: SHM-02 SHM-03 SHM-04 SHM-06 SHM-07 GRPC-23
    "shared-memory": Suite(
        "triton-2.51-shared-memory",
        shared_memory_cases.write_models,
        shared_memory_cases.shared_memory_cases,
        surroundings=shared_memory_cases.objects,
        later_flags=shared_memory_cases.FLAGS,
    ),
    # row: HTTP-19 HTTP-20
    "compression": Suite(
        "triton-2.51-compression",
        compression_cases.write_models,
        compression_cases.compression_cases,
    ),
    # row: GEN-01 GEN-02 GEN-03 GEN-07 GEN-08
    "generate": Suite(
        "triton-2.51-generate",
        generate_cases.write_models,
        generate_cases.generate_cases,
    ),
    # row: SM-03
    "sagemaker": Suite(
        "triton-2.51-sagemaker",
        cloud_cases.write_models,
        cloud_cases.sagemaker_cases,
        cloud_cases.SAGEMAKER_ENVIRONMENT,
        flags=cloud_cases.SAGEMAKER_FLAGS,
        surroundings=cloud_cases.archives,
    ),
    # row: SM-05
    "vertex-ai": Suite(
        "triton-2.51-vertex-ai",
        cloud_cases.write_models,
        cloud_cases.vertex_ai_cases,
        cloud_cases.VERTEX_AI_ENVIRONMENT,
        flags=cloud_cases.VERTEX_AI_FLAGS,
    ),
    # row: STAT-03 CACHE-06
    "statistics": Suite(
        "triton-2.51-statistics",
        statistics_cases.write_models,
        statistics_cases.statistics_cases,
        flags=statistics_cases.FLAGS,
    ),
    # row: STAT-03
    "statistics-batched": Suite(
        "triton-2.51-statistics-batched",
        lambda root: statistics_cases.write_texts(root, statistics_cases.BATCHED),
        statistics_cases.batched_cases,
        {"TRITONSERVER_DELAY_SCHEDULER": "4"},
    ),
    # row: TRC-01 TRC-02 TRC-03 TRC-04
    "traces": Suite(
        "triton-2.51-traces",
        trace_cases.write_models,
        trace_cases.trace_cases,
        flags=trace_cases.FLAGS,
    ),
    # row: TRC-01 TRC-03
    "traces-to-collector": Suite(
        "triton-2.51-traces-to-collector",
        trace_cases.write_models,
        trace_cases.short_cases,
        flags=trace_cases.COLLECTOR_FLAGS,
    ),
    "traces-without-file": Suite(
        "triton-2.51-traces-without-file", trace_cases.write_models, trace_cases.short_cases
    ),
    **{
        f"metrics-{name}": Suite(
            f"triton-2.51-metrics-{name}", metrics_cases.write_models, metrics_cases.cases,
            flags=flags,
        )
        for name, flags in metrics_cases.SETTINGS.items()
    },
    **{held.name: _held_suite(held) for held in held_cases.HELD},
}
