"""Tables and pictures of runs, and pages of them: `from identiformer.train import report` can be called."""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module that answers a call: in `identiformer.train`, its name is that of the command `report` as well."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from ..reporting import report

        return report(*args, **options)


sys.modules[__name__].__class__ = _Callable
