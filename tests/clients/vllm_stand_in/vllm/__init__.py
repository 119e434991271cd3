"""A stand-in for vLLM: the names that Triton's vllm_backend imports from it, and an engine for
words.

The engine responds to a prompt with its own words in turn, one word per step. Prompts with the
word `fail` fail in the second step. The path of an adapter comes before the words, and the sizes of
images behind them. Texts and numbers are the same as those of a real engine with a tokenizer that
splits at spaces.
"""

import sys

from vllm import everything

__version__ = "0.0.0"

#: The modules of vLLM that are imported; here one has all their names.
MODULES = (
    "config",
    "engine",
    "engine.arg_utils",
    "engine.protocol",
    "inputs",
    "inputs.data",
    "lora",
    "lora.request",
    "outputs",
    "pooling_params",
    "sampling_params",
    "usage",
    "usage.usage_lib",
    "utils",
    "v1",
    "v1.engine",
    "v1.engine.async_llm",
    "v1.metrics",
    "v1.metrics.loggers",
    "v1.metrics.stats",
)
for _name in MODULES:
    sys.modules[f"vllm.{_name}"] = everything
