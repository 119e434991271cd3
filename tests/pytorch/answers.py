"""Writes a model's configuration and its expected results as JSON."""

import json

import torch

NAMES = {
    torch.bool: "BOOL", torch.uint8: "UINT8", torch.int8: "INT8", torch.int16: "INT16",
    torch.int32: "INT32", torch.int64: "INT64", torch.float16: "FP16", torch.float32: "FP32",
    torch.float64: "FP64", torch.bfloat16: "BF16",
}


def tensor(value):
    """A tensor, or a list of strings, with its bytes as numbers."""
    if isinstance(value, list):
        return {"datatype": "BYTES", "shape": [len(value)], "strings": value}
    value = value.detach().contiguous()
    data = list(value.flatten().view(torch.uint8).numpy().tobytes())
    return {"datatype": NAMES[value.dtype], "shape": list(value.shape), "bytes": data}


def write(path, config, module, cases, names):
    """Computes the results of the cases, which are pairs of arguments and keywords."""
    written = []
    for arguments, keywords in cases:
        with torch.inference_mode():
            results = module(*arguments, **keywords)
        inputs, outputs = names(arguments, keywords, results)
        written.append(
            {
                "inputs": {name: tensor(value) for name, value in inputs.items()},
                "outputs": {name: tensor(value) for name, value in outputs.items()},
            }
        )
    path.write_text(json.dumps({"config": config, "cases": written}) + "\n")
