"""The frontends of the package galatea under the name of Triton's package."""

from galatea.tritonfrontend import *  # noqa: F403
from galatea.tritonfrontend import __all__ as __all__
