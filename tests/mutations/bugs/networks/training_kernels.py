"""Bugs in the kernels for training on a CPU, and in when they are used."""

import os
import shutil

from mutations.bugs.bug import Bug

COMPILER = shutil.which((os.environ.get("CXX") or "c++").split()[0])
SOURCE, CALLER = (f"chainrule/kernels/cpu/layers.{end}" for end in ("cpp", "py"))
LAYERS, RULE = "tests/kernels/test_cpu_layers.py", "tests/training/step/test_cpu_kernels.py"

BUGS = [
    Bug(
        "the gradient of a norm forgets what flows past it",
        SOURCE,
        "            if (added) result += load(added[i]);\n",
        "",
        (f"{LAYERS}::test_the_gradient_of_a_sum_and_its_norm[one thread-plain-added-torch.float32]",),
    ),
    Bug(
        "ReLU² hides what is not a number",
        SOURCE,
        "return x < 0 ? 0 : x;",
        "return x > 0 ? x : 0;",
        (f"{LAYERS}::test_what_is_not_a_number_stays_so[one thread-torch.float32]",),
    ),
    Bug(
        "of two threads one adds up the gradient of a bias",
        CALLER,
        "return sums.sum(0)",
        "return sums[0]",
        (f"{LAYERS}::test_relu2[two threads-True-torch.float32]",),
    ),
    Bug(
        "the gradient is dropped elsewhere than the numbers were",
        "chainrule/kernels/ops.py",
        "    _, *ctx.mask = inputs\n",
        "    _, *ctx.mask = inputs\n    ctx.mask[1] ^= 1\n",
        ("tests/kernels/test_dropout.py::test_the_gradient_passes_where_numbers_are_kept[C++]",),
    ),
    Bug(
        "a thread whose numbers begin within 64 random bits draws others",
        SOURCE,
        "int64_t at = first / block * block;",
        "int64_t at = first;",
        (f"{LAYERS}::test_the_mask_of_dropout_follows_from_its_key[two threads-7]",),
    ),
] if COMPILER else []
BUGS += [
    Bug(
        "a run that goes on has other kernels than it began with",
        "chainrule/training/trainer.py",
        "        self.step.fused = use_cpu_kernels(model, settings, self.budget, self.loader.targets)\n",
        "        begun = checkpoints is not None and checkpoints.last(self.weights) is not None\n"
        "        fused = use_cpu_kernels(model, settings, self.budget, self.loader.targets)\n"
        "        self.step.fused = fused and not begun\n",
        (f"{RULE}::test_a_run_that_was_interrupted_goes_on_with_the_same_kernels",),
    ),
    Bug(
        "a run of a few steps waits for the compiler",
        "chainrule/training/compile/cpu_kernels.py",
        "budget.total_seconds(step) >= REPAID",
        "budget.total_seconds(step) >= 0",
        (f"{RULE}::test_they_serve_transformers_that_are_trained_for_long",),
    ),
    Bug(
        "memory is given back to the system after each step",
        "chainrule/device.py",
        "    mallopt(M_TRIM_THRESHOLD, KEPT)\n",
        "",
        ("tests/training/step/test_memory.py::test_freed_memory_is_kept_for_the_next_step",),
    ),
]
