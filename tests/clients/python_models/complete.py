"""Completes its configuration as a parameter selects."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        way = config.as_dict()["parameters"]["way"]["string_value"]
        if way == "raise":
            raise ValueError("completing failed")
        if way == "wrong":
            config.add_input({"name": "IN", "data_type": "TYPE_FP32"})
            return config
        config.set_max_batch_size(4)
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1], "optional": True})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_dynamic_batching()
        if way == "decoupled":
            config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(one, "IN").as_numpy())]
            )
            for one in requests
        ]
