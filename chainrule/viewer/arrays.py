"""Arrays in JSON: base64 of their bytes, which `unpack` of web/numbers.js makes typed arrays again.

A float32 stays what it was, in five and a third characters; written out it would take ten and lose a little.
"""

import base64
from typing import Any

import numpy as np
from torch import Tensor

TYPES = {"float32": "<f4", "int32": "<i4", "uint8": "u1", "uint16": "<u2"}


def pack(values: Any, dtype: str = "float32") -> dict[str, Any]:
    array = values.detach().float().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    data = np.ascontiguousarray(array, np.dtype(TYPES[dtype]))
    return {"dtype": dtype, "shape": list(data.shape), "data": base64.b64encode(data.tobytes()).decode()}
