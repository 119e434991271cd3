"""Fails to initialize as a parameter selects."""

import json
import os


class TritonPythonModel:
    def initialize(self, args):
        way = json.loads(args["model_config"])["parameters"]["way"]["string_value"]
        if way == "exit":
            os._exit(1)
        raise ValueError("initializing failed")

    def execute(self, requests):
        return [None for _ in requests]
