"""Writes lines of each level to the server's log."""

import pathlib

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("talk: initializing")
        folder = pathlib.Path(args["model_repository"])
        self.file = folder / "finalized"

    def execute(self, requests):
        logger = pb_utils.Logger
        logger.log_info("talk: info with\na second line")
        logger.log_warn("talk: warning")
        logger.log_error("talk: error")
        logger.log_verbose("talk: verbose")
        logger.log("talk: any", logger.WARNING)
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(one, "IN").as_numpy())]
            )
            for one in requests
        ]

    def finalize(self):
        pb_utils.Logger.log_info("talk: finalizing")
        self.file.write_text("yes")
