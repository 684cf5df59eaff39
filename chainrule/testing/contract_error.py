"""ContractError, and the decorator `law`: a check whose failure is a ContractError that states the law."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, cast

import torch

from chainrule.inference.forward import eval_mode
from chainrule.model import LanguageModel

P = ParamSpec("P")
Check = Callable[Concatenate[LanguageModel, P], None]


class ContractError(AssertionError):
    """A law of the protocol that a model breaks."""


def law(check: Check[P]) -> Check[P]:
    """The check, in eval mode and without gradients; its failure states the law, the docstring's first line."""
    statement = (check.__doc__ or "").partition("\n")[0]

    @wraps(check)
    def checked(model: LanguageModel, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with torch.no_grad(), eval_mode(model):
                check(model, *args, **kwargs)
        except ContractError:
            raise
        except AssertionError as error:
            raise ContractError(f"{check.__name__}: {statement}\n{error}") from error
        except Exception as error:
            raise ContractError(f"{check.__name__}: {statement}\nraised {type(error).__name__}: {error}") from error

    return cast(Check[P], checked)
