"""Creates a server with options, and prints the results of the setters and of queries.

    python options.py LIBRARY BACKENDS OPTIONS QUESTIONS

OPTIONS is a JSON list of setter names with their arguments, except the options object. QUESTIONS
is a JSON list of functions that query the server. BACKENDS may be empty. Prints a JSON document:
the results of each setter, of creating the server and of each query.
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import byref, c_bool, c_char_p, c_double, c_int64, c_size_t, c_uint64, c_void_p

from functions import Functions


def encoded(argument: object) -> object:
    """An argument for C, in which whole numbers are as wide as registers."""
    kinds = {str: lambda text: c_char_p(text.encode()), bool: c_bool, int: c_int64}
    kinds |= {float: c_double, type(None): c_void_p}
    return kinds[type(argument)](argument)


class Program(Functions):
    """Options, and the server that is created from them."""

    def __init__(self, library: str) -> None:
        super().__init__(library)
        self.options, self.server = c_void_p(), c_void_p()
        self.check_call("ServerOptionsNew", byref(self.options))

    def set(self, name: str, *arguments: object) -> str | None:
        """The result of a setter."""
        return self.call(f"ServerOptions{name}", self.options, *map(encoded, arguments))

    def ready(self) -> object:
        """Returns true if the server is ready."""
        return self.read("ServerIsReady", self.server, c_bool)

    def model_ready(self, name: str) -> object:
        """Returns true if a model is ready."""
        flag = c_bool()
        call_arguments = self.server, name.encode(), c_int64(-1), byref(flag)
        return self.call("ServerModelIsReady", *call_arguments) or flag.value

    def document(self, name: str, *arguments: object) -> object:
        """The JSON document of a function."""
        message, base, size = c_void_p(), c_char_p(), c_size_t()
        call_arguments = self.server, *map(encoded, arguments), byref(message)
        if error := self.call(name, *call_arguments):
            return error
        self.check_call("MessageSerializeToJson", message, byref(base), byref(size))
        result = json.loads(ctypes.string_at(base, size.value))
        self.check_call("MessageDelete", message)
        return result

    def name(self) -> object:
        """The server's name."""
        return self.document("ServerMetadata")["name"]

    def states(self) -> object:
        """The models in the index, and their states."""
        index = self.document("ServerModelIndex", 0)
        return sorted([one["name"], one.get("state", "")] for one in index)

    def inputs(self, model: str) -> object:
        """The inputs' names in a model's configuration."""
        config = self.document("ServerModelConfig", model, -1, 1)
        return [one["name"] for one in config["input"]] if isinstance(config, dict) else config

    def has_metric(self, name: str) -> object:
        """Returns true if the metrics text has lines for this metric."""
        metrics, text, size = c_void_p(), c_char_p(), c_size_t()
        if error := self.call("ServerMetrics", self.server, byref(metrics)):
            return error
        self.check_call("MetricsFormatted", metrics, c_int64(0), byref(text), byref(size))
        found = name in ctypes.string_at(text, size.value).decode()
        self.check_call("MetricsDelete", metrics)
        return found

    def load(self, model: str, **given: str) -> object:
        """The result of a load with a configuration and files."""
        make = self.library.TRITONSERVER_ParameterNew, self.library.TRITONSERVER_ParameterBytesNew
        for one in make:
            one.restype = c_void_p
        kept = [text.encode() for text in given.values()]
        made = [
            c_void_p(
                make[0](b"config", c_int64(0), value)
                if name == "config"
                else make[1](name.replace("__", ":").encode(), value, c_uint64(len(value)))
            )
            for name, value in zip(given, kept)
        ]
        array = (c_void_p * max(len(made), 1))(*made)
        call_arguments = self.server, model.encode(), array, c_uint64(len(made))
        result = self.call("ServerLoadModelWithParameters", *call_arguments)
        for one in made:
            self.library.TRITONSERVER_ParameterDelete(one)
        return result


def main() -> None:
    """Applies the options, creates the server and runs the queries."""
    library, backends, options, questions = sys.argv[1:]
    program = Program(library)
    result = {"set": [program.set(*option) for option in json.loads(options)]}
    program.set("SetLogInfo", False)
    program.set("SetLogError", False)
    if backends:
        program.set("SetBackendDirectory", backends)
    result["created"] = program.call("ServerNew", byref(program.server), program.options)
    if result["created"] is None:
        result["queries"] = []
        for name, *arguments in json.loads(questions):
            given = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
            result["queries"].append(getattr(program, name)(*arguments, **given))
        program.check_call("ServerDelete", program.server)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
