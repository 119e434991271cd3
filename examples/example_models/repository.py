"""An example model, and the code that writes it to a model repository."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping


@dataclasses.dataclass(frozen=True)
class Example:
    """The files of one model directory.

    `config` is the text of `config.pbtxt`, or None if the server has to complete the
    configuration itself. `versions` maps a version number to the bytes of its
    `model.onnx`; it is empty if the model's backend uses no files. `extra` contains
    additional files by their path in the model directory.
    """

    config: str | None
    versions: Mapping[int, bytes]
    extra: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yields each file's path in the model directory, and its bytes."""
        if self.config is not None:
            yield "config.pbtxt", self.config.encode()
        for version, model in self.versions.items():
            yield f"{version}/model.onnx", model
        yield from self.extra.items()


ExampleMaker = Callable[[], Example]


def write_example(root: pathlib.Path, name: str, example: Example) -> list[pathlib.Path]:
    """Writes one model to a directory in `root`, and returns the files that changed.

    Unchanged files keep their modification time, because a server that polls
    its repository treats a newer time as a changed model.
    """
    directory = root / name
    written = []
    for relative, content in example.files():
        path = directory / relative
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        written.append(path)
    # The server recognizes a version by its directory, with or without files.
    if not example.versions:
        (directory / "1").mkdir(parents=True, exist_ok=True)
    return written
