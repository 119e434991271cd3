"""The package galatea under the name of Triton's package."""

from galatea.tritonserver import *  # noqa: F403
from galatea.tritonserver import __all__ as __all__
from galatea.tritonserver import __version__ as __version__

from . import _api as _api
from . import _c as _c
