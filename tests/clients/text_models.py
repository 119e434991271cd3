"""Directories of small text models, and what their outputs must be."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy
import onnx
import tokenizers
from onnx import TensorProto, helper, numpy_helper

WORDS = "the a cat dog sat on mat ran far away quickly".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WIDTH = 4
LENGTH_MAX = 12


def tokenizer() -> tokenizers.Tokenizer:
    """A tokenizer of words with BERT's special tokens."""
    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]")  # type: ignore[call-arg]
    )
    made.normalizer = tokenizers.normalizers.BertNormalizer()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def table() -> numpy.ndarray:
    """The vector of each token."""
    shape = (len(SPECIAL) + len(WORDS), WIDTH)
    return numpy.random.default_rng(7).normal(size=shape).astype(numpy.float32)


def network(outputs: int) -> bytes:
    """A network whose vectors are those of the table, plus the number of the text. With `outputs`,
    it returns that many logits: sums of the vectors of tokens that aren't padding."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["types", "last"], ["type_column"]),
        helper.make_node("Add", ["words", "type_column"], ["last_hidden_state"]),
    ]
    shape = ["b", "n", WIDTH]
    result = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, shape)
    if outputs:
        nodes += [
            helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["mask", "last"], ["mask_column"]),
            helper.make_node("Mul", ["last_hidden_state", "mask_column"], ["masked"]),
            helper.make_node("ReduceSum", ["masked", "tokens"], ["sums"], keepdims=0),
            helper.make_node("MatMul", ["sums", "classes"], ["logits"]),
        ]
        result = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", outputs])
    names = ["input_ids", "attention_mask", "token_type_ids"]
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "n"]) for name in names],
        [result],
        [
            numpy_helper.from_array(table(), "table"),
            numpy_helper.from_array(numpy.array([2]), "last"),
            numpy_helper.from_array(numpy.array([1]), "tokens"),
            numpy_helper.from_array(classes(outputs), "classes"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def classes(outputs: int) -> numpy.ndarray:
    """The weights of the logits."""
    return numpy.random.default_rng(9).normal(size=(WIDTH, outputs)).astype(numpy.float32)


def write(folder: pathlib.Path, files: dict[str, Any], outputs: int = 0) -> pathlib.Path:
    """Writes a model directory."""
    (folder / "onnx").mkdir(parents=True)
    (folder / "onnx" / "model.onnx").write_bytes(network(outputs))
    tokenizer().save(str(folder / "tokenizer.json"))
    limits = {"max_position_embeddings": LENGTH_MAX, "hidden_size": WIDTH}
    files["config.json"] = limits | files.get("config.json", {})
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


def modules(kinds: dict[str, str]) -> list[dict[str, Any]]:
    """The content of modules.json, from the folders of the modules and their types."""
    return [
        {"idx": number, "name": str(number), "path": path,
         "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(kinds.items())
    ]


def sentence_transformer(folder: pathlib.Path) -> pathlib.Path:
    """A model with mean pooling, scaling and prompts."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    return write(folder, {
        "modules.json": modules(kinds),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        "config_sentence_transformers.json": {"prompts": {"query": "the "}},
    })


def safetensors(tensors: dict[str, numpy.ndarray]) -> bytes:
    """A file of 16-bit floats."""
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        content = tensor.astype("<f2").tobytes()
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": offsets}
        data += content
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    return len(text).to_bytes(8, "little") + text + data


def dense_weights() -> dict[str, numpy.ndarray]:
    """The weights of a layer that lengthens embeddings."""
    random = numpy.random.default_rng(11)
    weights = {"linear.weight": random.normal(size=(WIDTH + 3, WIDTH)),
               "linear.bias": random.normal(size=WIDTH + 3)}
    return {name: value.astype(numpy.float16) for name, value in weights.items()}


def dense_embedder(folder: pathlib.Path) -> pathlib.Path:
    """A model with a dense layer behind the pooling."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense", "3": "Normalize"}
    return write(folder, {
        "modules.json": modules(kinds),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        "2_Dense/config.json": {
            "in_features": WIDTH, "out_features": WIDTH + 3, "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
        "2_Dense/model.safetensors": safetensors(dense_weights()),
    })


def cross_encoder(folder: pathlib.Path, prompt: str = "") -> pathlib.Path:
    """A model that scores pairs, with a sigmoid, and with a prompt in front of each query."""
    architecture = {"architectures": ["BertForSequenceClassification"]}
    files: dict[str, Any] = {"config.json": architecture | {"id2label": {"0": "LABEL_0"}}}
    if prompt:
        files["modules.json"] = modules({"": "Transformer"})
        files["config_sentence_transformers.json"] = {
            "model_type": "CrossEncoder", "prompts": {"web": prompt}, "default_prompt_name": "web",
        }
    return write(folder, files, 1)


def classifier(folder: pathlib.Path) -> pathlib.Path:
    """A model with three classes."""
    labels = {"0": "low", "1": "middle", "2": "high"}
    architecture = {"architectures": ["BertForSequenceClassification"]}
    return write(folder, {"config.json": architecture | {"id2label": labels}}, 3)


def vectors(text: str, second: str | None = None) -> numpy.ndarray:
    """The vectors of a text's tokens, or of a pair's."""
    encoder = tokenizer()
    encoder.enable_truncation(LENGTH_MAX)
    encoded = encoder.encode(text, second)
    result: numpy.ndarray = table()[encoded.ids] + numpy.array(encoded.type_ids)[:, None]
    return result


def embedding(text: str) -> numpy.ndarray:
    """The scaled mean of the vectors."""
    mean = vectors(text).mean(axis=0)
    scaled: numpy.ndarray = mean / numpy.linalg.norm(mean)
    return scaled


def dense_embedding(text: str) -> numpy.ndarray:
    """The scaled outputs of the dense layer."""
    weights = dense_weights()
    mean = vectors(text).mean(axis=0)
    values = numpy.tanh(weights["linear.weight"] @ mean + weights["linear.bias"])
    scaled: numpy.ndarray = values / numpy.linalg.norm(values)
    return scaled


def logits(outputs: int, text: str, second: str | None = None) -> numpy.ndarray:
    """The outputs of a classifier."""
    result: numpy.ndarray = vectors(text, second).sum(axis=0) @ classes(outputs)
    return result
