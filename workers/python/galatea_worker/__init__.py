"""Worker of a Python model: one process that runs one instance of the model.

The server starts the process and talks to it over sockets and two arenas of shared memory.
`main` is the loop and `wire` the encoding; `tensor`, `request`, `response` and `sender` contain
what a model sees through `triton_python_backend_utils`.
"""
