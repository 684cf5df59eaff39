"""Views of a model or of many, as self-contained HTML.

The package is itself the public function: `chainrule.look(run, "text")` calls `look` of shown.py.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chainrule.look.shown import Look


class _Callable(ModuleType):
    def __call__(self, *what: Any, **options: Any) -> "Look":
        from chainrule.look.shown import look

        return look(*what, **options)


sys.modules[__name__].__class__ = _Callable
