"""Worker of a Python model: one process that runs one instance of the model.

The server starts it and speaks to it over sockets and two arenas of shared memory.
`main` is the loop, `wire` the encoding, `tensor`, `request`, `response` and `sender` are
what a model sees through `triton_python_backend_utils`.
"""
