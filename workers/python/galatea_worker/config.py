"""Configurations: the `ModelConfig` of `auto_complete_config`, and look-ups by name."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional

Properties = Dict[str, Any]


def _by_name(config: Properties, part: str, name: str) -> Optional[Properties]:
    if part in config:
        for properties in config[part]:
            if properties["name"] == name:
                return properties
    return None


def get_input_config_by_name(model_config: Properties, name: str) -> Optional[Properties]:
    """Returns the properties of an input of a configuration, or None."""
    return _by_name(model_config, "input", name)


def get_output_config_by_name(model_config: Properties, name: str) -> Optional[Properties]:
    """Returns the properties of an output of a configuration, or None."""
    return _by_name(model_config, "output", name)


def using_decoupled_model_transaction_policy(model_config: Properties) -> bool:
    """True if a configuration has the decoupled transaction policy."""
    if "model_transaction_policy" in model_config:
        return model_config["model_transaction_policy"]["decoupled"]
    return False


class ModelConfig:
    """A configuration that `auto_complete_config` may complete."""

    def __init__(self, model_config: str) -> None:
        self._model_config: Properties = json.loads(model_config)

    def as_dict(self) -> Properties:
        """The configuration as a dictionary."""
        return self._model_config

    def _name(self) -> str:
        return self._model_config["name"]

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets the maximum batch size.

        Raises ValueError if the configuration has a larger one.
        """
        present = self._model_config["max_batch_size"]
        if present > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {present}, but in "
                f"auto-complete-config function for model '{self._name()}' specified "
                f"max_batch_size {max_batch_size}")
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Selects the dynamic batcher.

        Raises ValueError if the configuration has another scheduler.
        """
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but "
                    f"auto-complete-config function for model '{self._name()}' tries to "
                    "set scheduling_choice as 'dynamic_batching'")
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Properties) -> None:
        """Adds an input with `name`, `data_type`, `dims` and, optionally, `optional`.

        Raises ValueError if a property is missing or unknown, or the configuration has the input
        with other properties.
        """
        self._check("input", input, ("name", "data_type", "dims", "optional"),
                    "'name', 'data_type', 'dims' and 'optional'")
        self._add("input", input)

    def add_output(self, output: Properties) -> None:
        """Adds an output with `name`, `data_type` and `dims`.

        Raises ValueError if a property is missing or unknown, or the configuration has the
        output with other properties.
        """
        self._check("output", output, ("name", "data_type", "dims"),
                    "'name', 'data_type' and 'dims'")
        self._add("output", output)

    def _check(self, part: str, given: Properties, known: Any, listed: str) -> None:
        """Refuses unknown or missing properties of an input or output."""
        where = f"in auto-complete-config function for model '{self._name()}'"
        for key in given:
            if key not in known:
                raise ValueError(f"{part} '{given['name']}' {where} contains property "
                                 f"other than {listed}.")
        if "name" not in given:
            raise ValueError(f"{part} {where} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in given:
                raise ValueError(
                    f"{part} '{given['name']}' {where} is missing '{key}' property.")

    def _add(self, part: str, given: Properties) -> None:
        """Adds an input or output, or completes the one with that name."""
        for present in self._model_config[part]:
            if present["name"] == given["name"]:
                self._compare(part, present, given)
                present["data_type"] = given["data_type"]
                present["dims"] = given["dims"]
                if part == "input" and "optional" in given:
                    present["optional"] = given["optional"]
                return
        self._model_config[part].append(given)

    def _compare(self, part: str, present: Properties, given: Properties) -> None:
        """Refuses properties that differ from the configuration's."""
        model, name = self._name(), given["name"]
        if present["data_type"] not in ("TYPE_INVALID", given["data_type"]):
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype "
                f"{present['data_type']} for {part} '{name}', model provides "
                f"{given['data_type']}")
        for key in ("dims", "optional"):
            if key == "dims":
                differs = present["dims"] and present["dims"] != given["dims"]
            else:
                differs = (part == "input" and key in present and key in given
                           and present[key] != given[key])
            if differs:
                raise ValueError(
                    f"model '{model}', tensor '{name}': the model expects {key} "
                    f"{given[key]} but the model configuration specifies {key} "
                    f"{present[key]}")

    def set_model_transaction_policy(self, transaction_policy_dict: Properties) -> None:
        """Sets the transaction policy, as ``{"decoupled": True}``.

        Raises ValueError for other properties, or if the configuration has another
        value.
        """
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ValueError(
                    "model transaction property in auto-complete-config function for "
                    f"model '{self._name()}' contains property other than 'decoupled'.")
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        wanted = transaction_policy_dict["decoupled"]
        if "decoupled" in policy and policy["decoupled"] != wanted:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model "
                f"'{self._name()}', which is already set to '{policy['decoupled']}'.")
        policy["decoupled"] = wanted


__all__ = ["ModelConfig", "get_input_config_by_name", "get_output_config_by_name",
           "using_decoupled_model_transaction_policy"]
