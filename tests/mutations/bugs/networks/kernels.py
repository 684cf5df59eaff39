"""Bugs in chainrule/kernels."""

from mutations.bugs.bug import Bug

BUGS = [
    Bug(
        "scale and bias of a norm change places in the backward pass",
        "chainrule/kernels/ops.py",
        "return grad_x, grad_delta, grad_weight, grad_bias, None, None, None",
        "return grad_x, grad_delta, grad_bias, grad_weight, None, None, None",
        ("tests/kernels/test_ops.py::test_in_mixed_precision_their_errors_are_about_as_large[False]",),
    ),
    Bug(
        "int8 weights are rounded down",
        "chainrule/kernels/cpu/int8_linear.py",
        "(weight / scales[:, None]).round_()",
        "(weight / scales[:, None]).floor_()",
        ("tests/kernels/test_int8_linear.py::test_weights_are_rounded_to_the_nearest_step",),
    ),
    Bug(
        "a weight gradient in float8 has the scale of the gradient twice",
        "chainrule/kernels/float8_layers.py",
        "multiply(grad8.transposed, x8_t, grad8.inverse, x_inverse, torch.float32)",
        "multiply(grad8.transposed, x8_t, grad8.inverse, grad8.inverse, torch.float32)",
        ("tests/kernels/test_float8.py::test_a_linear_layer_and_its_gradients_are_the_written_out_products[True-False]",),
    ),
    Bug(
        "a sample of zeros decides the scale of all rows",
        "chainrule/kernels/float8.py",
        "self.found.clamp(min=self.smallest)",
        "self.found.clamp(min=TINY)",
        ("tests/kernels/test_float8.py::test_a_sample_of_zeros_does_not_spoil_the_other_rows[dtype0-1.75]",),
    ),
    Bug(
        "a norm without a learned scale multiplies by 0 in the kernel of a whole step",
        "chainrule/kernels/step_parameters.py",
        "(self.ones if name in SCALES else self.zeros)",
        "(self.zeros if name in SCALES else self.zeros)",
        ("tests/kernels/test_step_parameters.py::test_the_table_leads_to_every_parameter",),
    ),
    Bug(
        "the kernel of a whole step reads parameters where they were",
        "chainrule/kernels/step_parameters.py",
        "return self.addresses == _addresses([*layers, last_norm], base)",
        "return len(self.addresses) == len(_addresses([*layers, last_norm], base))",
        ("tests/kernels/test_step_parameters.py::test_a_parameter_that_moves_is_noticed",),
    ),
]
