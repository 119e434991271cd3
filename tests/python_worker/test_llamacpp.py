"""Tests of the parts of the backend `llamacpp` that need neither llama.cpp nor a server."""

import errno
import os
import random
import struct
import sys

import pytest
from harness import WORKER

sys.path.insert(0, str(WORKER))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(__file__)), "clients"))

import gguf_files  # noqa: E402
from galatea_llamacpp import engine, gguf, processors, sampling, settings  # noqa: E402
from galatea_worker.errors import BackendError  # noqa: E402

CONTEXT = 4096


def read(tmp_path, data):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return gguf.read(str(path))


def test_a_header(tmp_path):
    header = read(tmp_path, gguf_files.content())
    assert (header.architecture, header.context_length) == ("words", 100_000)
    assert (header.first_token, header.is_embedding) == ("<s>", False)
    assert header.tokenizer_config()["eos_token"] == "</s>"
    more = {"words.pooling_type": 1, "tokenizer.ggml.add_bos_token": False,
            "tokenizer.chat_template.tool_use": "tools"}
    header = read(tmp_path, gguf_files.content(more))
    assert (header.first_token, header.is_embedding) == ("", True)
    named = header.tokenizer_config()["chat_template"]
    assert [one["name"] for one in named] == ["default", "tool_use"]
    long = read(tmp_path, gguf_files.content({"tokenizer.chat_template": "x" * (1 << 20 | 1)}))
    with pytest.raises(BackendError, match="chat template is longer than"):
        long.tokenizer_config()
    bare = dict.fromkeys(gguf_files.METADATA)
    header = read(tmp_path, gguf_files.content(bare))
    assert (header.context_length, header.first_token) == (0, "")
    assert header.tokenizer_config() is None


def test_the_first_token_depends_on_the_tokenizer(tmp_path):
    unsaid = {"tokenizer.ggml.add_bos_token": None}
    for kind, pre, expected in [("llama", None, "<s>"), ("gpt2", "llama-bpe", "<s>"),
                                ("gpt2", "qwen2", "")]:
        given = {**unsaid, "tokenizer.ggml.model": kind, "tokenizer.ggml.pre": pre}
        assert read(tmp_path, gguf_files.content(given)).first_token == expected, (kind, pre)


def test_damaged_headers_are_errors_and_nothing_else(tmp_path):
    """Each prefix, and many files with changed bytes."""
    data = gguf_files.content()
    refused = 0
    chance = random.Random(28)
    damaged = [data[:length] for length in range(0, len(data), 7)]
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(data))] = chance.choice((0, 1, 127, 255))
        damaged.append(bytes(changed))
    for one in damaged:
        try:
            header = read(tmp_path, one)
            header.tokenizer_config()
        except BackendError as error:
            assert "can't load" in str(error)
            refused += 1
    assert len(damaged) > refused > len(data) // 7


def strings(*counts):
    """A file whose header consists of arrays of empty strings."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(counts))
    for number, count in enumerate(counts):
        head += gguf_files.text(f"key {number}")
        head += struct.pack("<IIQ", gguf_files.ARRAY, gguf_files.STRING, count) + bytes(8 * count)
    return head


def test_a_header_has_a_maximum_number_of_strings(tmp_path, monkeypatch):
    """Otherwise a sparse file of zeros means a step for every eight bytes."""
    monkeypatch.setattr(gguf, "_ITEMS_MAX", 100)
    read(tmp_path, strings(60, 40))
    for counts in [(101,), (60, 41)]:
        with pytest.raises(BackendError, match="its header have more than 100 strings"):
            read(tmp_path, strings(*counts))


def test_a_header_has_a_maximum_size_of_text(tmp_path, monkeypatch):
    """Keys, strings and the names of tensors are copied, so they count; arrays are skipped."""
    data = gguf_files.content()
    texts = [one for pair in gguf_files.METADATA.items() for one in pair if isinstance(one, str)]
    tokens = len("<s>") + len("</s>")
    size = sum(map(len, texts)) + tokens
    monkeypatch.setattr(gguf, "_TEXTS_BYTES_MAX", size)
    read(tmp_path, data)
    monkeypatch.setattr(gguf, "_TEXTS_BYTES_MAX", size - 1)
    with pytest.raises(BackendError, match=f"its header have more than {size - 1} bytes"):
        read(tmp_path, data)
    tensor = gguf_files.text("name of a tensor") + struct.pack("<IIQ", 0, 0, 0)
    data = gguf_files.content(dict.fromkeys(gguf_files.METADATA), tensors=1) + tensor + bytes(32)
    monkeypatch.setattr(gguf, "_TEXTS_BYTES_MAX", 16)
    read(tmp_path, data)
    monkeypatch.setattr(gguf, "_TEXTS_BYTES_MAX", 15)
    with pytest.raises(BackendError, match="its header have more than 15 bytes"):
        read(tmp_path, data)


@pytest.mark.parametrize("cores, quota, expected", [
    (1, None, 1), (2, None, 1), (4, None, 3), (64, None, 63), (64, 8.0, 7), (64, 1.5, 1),
    (64, 0.5, 1), (8, 16.0, 7)])
def test_a_core_is_left_to_the_server(cores, quota, expected):
    assert processors.choose(cores, quota) == expected


def test_names_of_parameters():
    given = {"repetition_penalty": 1.5, "stop": "x", "seed": -1, "max_tokens": 1 << 40, "n": 1,
             "top_p": None}
    assert sampling.convert(given, CONTEXT) == {
        "repeat_penalty": 1.5, "stop": ["x"], "seed": 0xffff_ffff, "max_tokens": (1 << 31) - 1}
    with pytest.raises(sampling.Refusal, match="there is no parameter 'temprature'"):
        sampling.convert({"temprature": 1}, CONTEXT)


@pytest.mark.parametrize("name, least, most", [
    ("repeat_last_n", -1, CONTEXT), ("dry_penalty_last_n", -1, CONTEXT), ("mirostat", 0, 2),
    ("dry_allowed_length", 0, 2**31 - 1), ("min_keep", 0, 2**31 - 1), ("n_keep", -1, 2**31 - 1),
    ("t_max_predict_ms", -1, 2**31 - 1), ("top_k", -1, 2**31 - 1), ("max_tokens", -1, 2**64 - 1),
    ("seed", -2**63, 2**64 - 1)])
def test_integers_have_limits(name, least, most):
    """llama.cpp allocates memory for some of them, and asserts others."""
    for value in (least, most):
        expected = min(value, 2**31 - 1)
        if name == "seed":
            expected = value & 0xffff_ffff
        elif most == CONTEXT:
            expected = CONTEXT  # -1 stands for it
        assert sampling.convert({name: value}, CONTEXT) == {name: expected}
    for value in (least - 1, most + 1, 0.0, True, "1"):
        with pytest.raises(sampling.Refusal) as refused:
            sampling.convert({name: value}, CONTEXT)
        assert str(refused.value) == (
            f"the parameter '{name}' must be an integer from {least} to {most}")


@pytest.mark.parametrize("given", [{"temperature": 10**400}, {"logit_bias": {"5": 10**400}}])
def test_numbers_that_no_double_holds(given):
    [name] = given
    with pytest.raises(sampling.Refusal, match=f"the parameter '{name}' must be"):
        sampling.convert(given, CONTEXT)


@pytest.mark.parametrize("given", [
    {"json_schema": {"a": "x" * 300_000}},
    {"json_schema": '{"a": "%s"}' % ("x" * 300_000)},
    {"structured_outputs": {"json": {"a": "x" * 300_000}}},
    {"structured_outputs": {"choice": ["x" * 1000] * 300}},
    {"structured_outputs": {"grammar": "x" * 300_000}}])
def test_what_a_text_must_match_has_a_maximum_length(given):
    with pytest.raises(sampling.Refusal, match="at most 262144 characters"):
        sampling.convert(given, CONTEXT)


def test_what_a_text_must_match_may_be_long():
    schema, choice = {"a": "x" * 200_000}, ["x" * 1000] * 200
    for form in (schema, '{"a": "%s"}' % schema["a"]):
        assert sampling.convert({"json_schema": form}, CONTEXT) == {"json_schema": schema}
    converted = sampling.convert({"structured_outputs": {"choice": choice}}, CONTEXT)
    assert converted["grammar"].count(" | ") == 199


def settled(count=1, context_length=100_000, **parameters):
    """The settings of a configuration."""
    header = gguf.Header({"general.architecture": "a", "a.context_length": context_length}, {})
    config = {"instance_group": [{"count": count}], "parameters": {
        name: {"string_value": text} for name, text in parameters.items()}}
    return settings.Settings(config, header)


@pytest.mark.parametrize("name", ["n_batch", "n_ubatch", "max_tokens"])
def test_parameters_of_a_model_that_embeds(name):
    """A prompt is computed in one step, and no text follows."""
    assert settled(**{name: "64"}).task == "generate"
    assert settled(task="embed", n_ctx="64").batch == 64
    with pytest.raises(BackendError, match=f"parameter '{name}' has no meaning for a model that"):
        settled(task="embed", **{name: "64"})


def test_the_slots_together_have_a_maximum_context():
    assert settled(4, n_ctx="500000000").context == 500_000_000
    for count, length, text in [(5, 1, "500000000"), (1, 1 << 40, "0")]:
        with pytest.raises(BackendError, match="parameter 'n_ctx' gives each of"):
            settled(count, length, n_ctx=text)


def broken(step, number):
    """A socket that fails in one of its steps."""
    class Socket:
        def __init__(self, *given):
            self.fail("open")

        def fail(self, this):
            if step == this:
                raise OSError(number, os.strerror(number))

        def __enter__(self):
            return self

        def __exit__(self, *given):
            pass

        def bind(self, path):
            self.fail("bind")

    return Socket


@pytest.mark.parametrize("step, number, expected", [
    ("open", errno.EPERM, "the setting 'sandbox' must be false"),
    ("open", errno.ENOSYS, "the setting 'sandbox' must be false"),
    ("open", errno.EMFILE, r"this process can't open \(Too many open files\)$"),
    ("bind", errno.EPERM, "set TMPDIR to another folder"),
    ("bind", errno.ENOSPC, r"\(No space left on device\): set TMPDIR to another folder")])
def test_a_socket_that_cannot_be_opened(monkeypatch, step, number, expected):
    """A process may not open one, or a file system may not hold one."""
    monkeypatch.setattr(engine.socket, "socket", broken(step, number))
    with pytest.raises(BackendError, match=expected), engine._private_socket():
        pass


def test_a_missing_folder_for_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setattr(engine.tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(BackendError, match="set TMPDIR to another folder"), \
            engine._private_socket():
        pass
