"""Arrays as JSON: base64 of their bytes, which `unpack` of web/arrays.js turns into typed arrays again.

A float32 keeps its exact value in 5⅓ characters; as decimal digits it would take about ten and be rounded.
"""

import base64
from typing import Any

import numpy as np
from torch import Tensor

TYPES = {"float32": "<f4", "int32": "<i4", "uint8": "u1", "uint16": "<u2"}


def pack_array(values: Any, dtype: str = "float32") -> dict[str, Any]:
    array = values.detach().float().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    data = np.ascontiguousarray(array, np.dtype(TYPES[dtype]))
    return {"dtype": dtype, "shape": list(data.shape), "data": base64.b64encode(data.tobytes()).decode()}
