"""The models of Galatea's example repository, built with `onnx` and `numpy` only.

Each module contains one family, and a `MODELS` dictionary that maps a model's name to
the function that creates its `Example`.
"""
