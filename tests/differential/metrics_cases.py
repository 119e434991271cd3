"""Metrics pages: families, help texts, types, labels and counts. Durations are masked."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator

import statistics_cases as models
from cases import Case
from configuration_cases import identity

CACHE = "--cache-config=local,size=1000000"
#: The flags of each suite.
SETTINGS = {
    # row: CFG-17 MET-04 MET-06 MET-10 MET-11
    "default": (CACHE,),
    # row: MET-09
    "summaries": (CACHE, "--metrics-config=summary_latencies=true"),
    # row: MET-09
    "quantiles": (
        "--metrics-config=summary_latencies=true",
        # A number before text counts; a pair without an error and one without a number don't.
        "--metrics-config=summary_quantiles=0.25:0.01,0.75,x:1,0.125x:0.1,1.5:0.1",
        "--allow-cpu-metrics=false",
    ),
    "wrong-quantiles": (
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_latencies=false",
        "--metrics-config=summary_quantiles=abc",
    ),
    # row: MET-07
    "without-counters": (
        CACHE,
        "--metrics-config=counter_latencies=false",
        "--metrics-config=counter_latencies=true",
        "--metrics-config=summary_latencies=true",
        "--metrics-config=colour=red",
    ),
    "words": ("--metrics-config=counter_latencies=False", "--metrics-config=summary_latencies=1"),
}
MODELS = {
    "plain": identity(),
    "tagged": identity(more='metric_tags { key: "zone" value: "a \\"b\\" \\\\ c" }'),
    "cached": identity(more=models.CACHED),
}

#: Families that are Galatea's own or came with releases after 2.51.
LEFT_OUT = re.compile(
    r"galatea_|nv_model_load_duration_secs|nv_inference_first_response_|input_byte_size_counter"
)
#: Series whose values are the same in each run.
COUNTED = re.compile(
    r"nv_inference_(request_success|request_failure|count|exec_count|pending_request_count)[{]"
    r"|nv_cache_num_\w+_per_model|\w+_count[{]|nv_pinned"
)
SERIES = re.compile(r"(.+) (\S+)")


@dataclasses.dataclass
class Family:
    """The text before the series, and the series in alphabetical order."""

    head: list[str]
    series: list[str]


def page(text: str) -> list[list[str]]:
    """The families of a page in order; the order of series within a family is ignored."""
    families: list[Family] = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            families.append(Family([], []))
        if line.startswith("#"):
            families[-1].head.append(line)
        else:
            found = SERIES.fullmatch(line)
            assert found, line
            name, value = found.groups()
            shown = value if COUNTED.match(name) or value == "Nan" else "?"
            families[-1].series.append(f"{name} {shown}")
    kept = [family for family in families if not LEFT_OUT.match(family.head[0].split()[2])]
    return [[*family.head, *sorted(family.series)] for family in kept]


def write_models(root: pathlib.Path) -> None:
    """Writes the models, which need no files."""
    models.write_texts(root, MODELS)


def cases() -> list[Case]:
    """A page before and after requests."""

    def requests() -> Iterator[Case]:
        for number, rows in enumerate((1, 3)):
            yield models.infer("plain", number, [models.tensor(1, rows)])
        yield models.infer("plain", 2, [models.tensor(1, 9)])
        for number, value in enumerate((1, 1, 2)):
            yield models.infer("cached", number, [models.tensor(value)])

    first = Case("metrics: before requests", path="/metrics")
    return [first, *requests(), Case("metrics: after requests", path="/metrics")]
