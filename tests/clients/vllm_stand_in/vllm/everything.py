"""The names of all modules."""

import asyncio
import dataclasses
import enum
import time
import uuid
from typing import Any, Callable, Dict, Generic, List, Optional, TypeVar

#: How long a step of the engine takes.
STEP_SECONDS = 0.01


def random_uuid():
    return uuid.uuid4().hex


class UsageContext(enum.Enum):
    OPENAI_API_SERVER = "OPENAI_API_SERVER"


# The parameters of requests.


class StructuredOutputsParams:
    def __init__(self, **parameters):
        self.parameters = parameters


class SamplingParams:
    """Accepts the annotated names of its class, and those of derived classes."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: Optional[int] = None
    stop: Optional[Any] = None
    logit_bias: Optional[Dict[str, float]] = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_tokens: int = 0
    max_tokens: Optional[int] = 16
    logprobs: Optional[int] = None
    ignore_eos: bool = False
    structured_outputs: Optional[StructuredOutputsParams] = None

    def __init__(self, **values):
        known = set()
        for kind in type(self).__mro__:
            known.update(getattr(kind, "__annotations__", {}))
        for name, value in values.items():
            if name not in known:
                raise TypeError(f"Unexpected keyword argument '{name}'")
            setattr(self, name, value)
        if self.n < 1:
            raise ValueError(f"n must be at least 1, got {self.n}.")


@dataclasses.dataclass
class PoolingParams:
    dimensions: Optional[int] = None
    task: str = "embed"


@dataclasses.dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


def TokensPrompt(**values):
    return values


# Results.


@dataclasses.dataclass
class Logprob:
    logprob: float
    rank: int
    decoded_token: str


@dataclasses.dataclass
class CompletionOutput:
    text: str
    token_ids: List[int]
    cumulative_logprob: float
    logprobs: Optional[List[Dict[int, Logprob]]]
    finish_reason: Optional[str]


@dataclasses.dataclass
class RequestOutput:
    request_id: str
    prompt: str
    prompt_token_ids: List[int]
    outputs: List[CompletionOutput]
    finished: bool


_T = TypeVar("_T")


@dataclasses.dataclass
class EmbeddingOutput:
    embedding: List[float]


@dataclasses.dataclass
class PoolingRequestOutput(Generic[_T]):
    request_id: str
    outputs: Any
    prompt_token_ids: List[int]
    finished: bool = True


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    @staticmethod
    def from_base(output):
        return output


# Metrics.


@dataclasses.dataclass
class FinishedRequestStats:
    e2e_latency: float
    num_prompt_tokens: int
    num_generation_tokens: int


@dataclasses.dataclass
class IterationStats:
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    finished_requests: List[FinishedRequestStats] = dataclasses.field(default_factory=list)
    time_to_first_tokens_iter: List[float] = dataclasses.field(default_factory=list)
    inter_token_latencies_iter: List[float] = dataclasses.field(default_factory=list)
    n_params_iter: List[int] = dataclasses.field(default_factory=list)


class SchedulerStats:
    pass


class MultiModalCacheStats:
    pass


class StatLoggerBase:
    def __init__(self, vllm_config, engine_index=0):
        self.vllm_config = vllm_config


StatLoggerFactory = Callable[[Any, int], StatLoggerBase]


def build_1_2_5_buckets(max_value):
    """1, 2, 5, 10, 20, 50 and so on, up to the maximum."""
    buckets = []
    power = 1
    while power <= max_value:
        buckets += [factor * power for factor in (1, 2, 5) if factor * power <= max_value]
        power *= 10
    return buckets


# The engine.


@dataclasses.dataclass
class ModelConfig:
    max_model_len: int


@dataclasses.dataclass
class VllmConfig:
    model: str
    model_config: ModelConfig


@dataclasses.dataclass
class AsyncEngineArgs:
    model: str
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    max_model_len: int = 2048
    enable_lora: bool = False
    tensor_parallel_size: int = 1
    disable_log_stats: bool = False
    enable_log_requests: bool = False
    aggregate_engine_logging: bool = False

    def create_engine_config(self, usage_context=None):
        if self.model == "missing":
            raise ValueError("There is no model 'missing'.")
        return VllmConfig(self.model, ModelConfig(self.max_model_len))


class EngineClient:
    pass


class AsyncLLM(EngineClient):
    @classmethod
    def from_vllm_config(cls, vllm_config, stat_loggers=None, disable_log_stats=False, **_):
        engine = cls()
        engine.config = vllm_config
        engine.loggers = [make(vllm_config, 0) for make in stat_loggers or ()]
        engine.aborted = set()
        return engine

    async def reset_mm_cache(self):
        pass

    def shutdown(self):
        pass

    async def get_supported_tasks(self):
        return ("generate", "embed")

    async def check_health(self):
        if self.config.model == "sick":
            raise RuntimeError("the engine is sick")

    async def abort(self, request_id):
        self.aborted.add(request_id)

    def _record(self, statistics):
        for logger in self.loggers:
            logger.record(SchedulerStats(), statistics)

    async def generate(self, prompt, sampling_params, request_id, lora_request=None):
        """The results so far, after each step."""
        words = self._words(prompt, lora_request)
        began = latest = time.monotonic()
        count = sampling_params.max_tokens
        for step in range(1, count + 1):
            await asyncio.sleep(STEP_SECONDS)  # sleep: the time that a token takes
            if request_id in self.aborted:
                return
            if step == 2 and "fail" in words:
                raise RuntimeError("the engine failed")
            now = time.monotonic()
            statistics = IterationStats(num_generation_tokens=sampling_params.n)
            if step == 1:
                statistics.num_prompt_tokens = len(words)
                statistics.time_to_first_tokens_iter = [now - began]
                statistics.n_params_iter = [sampling_params.n]
            else:
                statistics.inter_token_latencies_iter = [now - latest]
            latest = now
            if step == count:
                done = FinishedRequestStats(now - began, len(words), count * sampling_params.n)
                statistics.finished_requests = [done]
            self._record(statistics)
            outputs = [self._output(words, step, count, sampling_params)] * sampling_params.n
            tokens = list(range(len(words)))
            text = prompt["prompt"] if isinstance(prompt, dict) else prompt
            yield RequestOutput(request_id, text, tokens, outputs, step == count)

    @staticmethod
    def _words(prompt, lora_request):
        """The words of a prompt. An adapter and images are words, too."""
        words = [f"adapter:{lora_request.lora_path}"] if lora_request else []
        if not isinstance(prompt, dict):
            return words + prompt.split()
        images = prompt["multi_modal_data"]["image"]
        sizes = [f"image:{image.width}x{image.height}" for image in images]
        return words + prompt["prompt"].split() + sizes

    @staticmethod
    def _output(words, step, count, sampling_params):
        tokens = [index % len(words) for index in range(step)]
        logprobs = None
        if sampling_params.logprobs is not None:
            logprobs = [{one: Logprob(-0.5, 1, words[one])} for one in tokens]
        text = "".join(f" {words[one]}" for one in tokens)
        reason = "length" if step == count else None
        return CompletionOutput(text, tokens, -0.5 * step, logprobs, reason)

    async def encode(self, prompt, pooling_params, request_id):
        tokens = prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt.split()
        await asyncio.sleep(STEP_SECONDS)  # sleep: the time that a token takes
        length = pooling_params.dimensions or 3
        embedding = [float(len(tokens))] * length
        yield PoolingRequestOutput(request_id, EmbeddingOutput(embedding), list(range(len(tokens))))
