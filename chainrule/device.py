"""The device that a model runs on: CPU or GPU, mixed precision (autocast), CUDA graphs, and the number of CPU threads.

    choose_device       `auto` takes a GPU when there is one
    shapes_only         the device "meta": networks of any size are built without memory
    cudnn_attention     whether torch may compute attention by cuDNN, which plans each shape of batch again
    tf32_products       whether a GPU may multiply float32 by TF32
    choose_precision    the dtype of matrix products: `with precision():` is autocast; parameters stay in float32
    CudaGraph           a function captured once and replayed with a single launch; used by training and by decoding
    fastest_threads     the number of CPU threads that makes small steps fastest, found by trial
    keep_freed_memory   on a CPU the memory of one step serves the next
"""

import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu
from torch.overrides import TorchFunctionMode

from chainrule.errors import UserError


def choose_device(name: str) -> torch.device:
    """The device by its name, and torch set up for it: attention without cuDNN, except in `cudnn_attention(True)`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    elif name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here. Leave --device out, or use --device cpu.")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"there is no device {name}. It is auto, cpu or cuda.") from None
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


@contextmanager
def shapes_only() -> Iterator[None]:
    """Networks that are built here have shapes and no memory, and so no initial weights, which torch would prepare."""
    with torch.device("meta"), _WithoutInitialWeights():
        yield


class _WithoutInitialWeights(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given["tensor"]
        return func(*args, **given)


@contextmanager
def cudnn_attention(on: bool) -> Iterator[None]:
    """Whether torch may compute attention by cuDNN: the fastest on long rows, but each new shape of batch costs a third
    of a second or more, while it is planned. So it pays where all batches have one shape, and nowhere else."""
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(on)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@contextmanager
def tf32_products(on: bool) -> Iterator[None]:
    """Whether a GPU may multiply float32 by TF32: 10 bits of each mantissa instead of 23, sums in float32, and several
    times as fast. bfloat16 has 7 bits."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = on
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether matrix products are much faster in bfloat16 than in float32: on recent GPUs, and on some CPUs."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and has_bfloat16_units()


def has_bfloat16_units() -> bool:
    """Whether this CPU has AMX or AVX512-BF16, and no variable keeps oneDNN from using them."""
    has = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return "ONEDNN_MAX_CPU_ISA" not in os.environ and bool(has)


class Switch:
    """A flag of the whole process: a plain attribute, since torch.compile cannot trace a context variable."""

    on = False

    @contextmanager
    def set(self, on: bool) -> Iterator[None]:
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before


# Mixed precision. Parameters, gradients and sums stay in float32; matrix products may be in bfloat16. With
# train.precision=bfloat16-stream the residual stream of a Transformer is in bfloat16 too: it is read and written more
# often than anything else, so a GPU is faster with it. docs/training/training.md says what that costs in nats. With
# train.precision=float8 the products of a Transformer are in float8 while it is trained (kernels/float8.py).

STREAM, FLOAT8 = "bfloat16-stream", "float8"
FLOAT8_CAPABILITY = (8, 9)    # the compute capability from which on a GPU multiplies float8: Ada and Hopper

_bfloat16_residual = Switch()
bfloat16_residual = _bfloat16_residual.set    # `with bfloat16_residual(True):` the residual stream has autocast's dtype


def working_dtype(like: Tensor) -> torch.dtype:
    """The dtype of autocast where it is enabled; else that of the tensor."""
    device = like.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else like.dtype


def as_residual(x: Tensor) -> Tensor:
    """The tensor in the dtype of the residual stream."""
    return x.to(working_dtype(x)) if _bfloat16_residual.on else x


@dataclass(frozen=True)
class Precision:
    device: str
    dtype: torch.dtype        # of matrix products
    why: str                  # why this one was chosen, for people
    stream: bool = False      # whether the residual stream has this dtype too
    float8: bool = False      # whether training steps multiply in float8 where they can

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """`with precision():` around the forward pass of a model."""
        if self.dtype == torch.float32:
            yield
            return
        with torch.autocast(self.device, self.dtype), bfloat16_residual(self.stream):
            yield

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} ({self.why})"


def choose_precision(name: str, device: torch.device) -> Precision:
    if name == STREAM:
        return Precision(device.type, torch.bfloat16, "as asked, and so is the residual stream", stream=True)
    if name == FLOAT8:
        _check_float8(device)
        return Precision(device.type, torch.bfloat16, "products of training steps in float8, as asked", float8=True)
    if name != "auto":
        return Precision(device.type, getattr(torch, name), "as asked")
    if not multiplies_bfloat16(device):
        where = "GPU" if device.type == "cuda" else device.type.upper()
        return Precision(device.type, torch.float32, f"this {where} gains little from bfloat16")
    return Precision(device.type, torch.bfloat16, "weights and sums stay in float32")


def _check_float8(device: torch.device) -> None:
    """Refuses a device that does not multiply float8."""
    if device.type != "cuda":
        found = f"this is a {device.type.upper()}"
    elif torch.version.cuda is None:
        found = "this torch is not for CUDA"
    else:
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) >= FLOAT8_CAPABILITY:
            return
        found = f"{torch.cuda.get_device_name(device)} has {major}.{minor}"
    raise UserError(
        "train.precision=float8 needs an NVIDIA GPU with compute capability "
        f"{'.'.join(map(str, FLOAT8_CAPABILITY))} or newer (Ada, Hopper); {found}. Use train.precision=auto."
    )


class CudaGraph:
    """A function of fixed tensors, captured once; `replay` runs all its kernels with a single launch.

    inputs    static tensors that the function reads; `replay` copies new values into them
    state     static tensors that the function goes on from; after each replay they hold what it returned
    share     another graph whose memory pool this one uses, which is safe since graphs run one after another
    tidy      empty torch's cache of free memory first: slow, but large graphs need it

    The caller runs the function once beforehand (warm-up). A function that waits for the GPU cannot be captured: then
    RuntimeError is raised, and everything else stays usable.
    """

    def __init__(
        self,
        function: Callable[[], Iterable[Tensor]],
        inputs: Iterable[Tensor],
        state: Iterable[Tensor] = (),
        *,
        share: "CudaGraph | None" = None,
        tidy: bool = True,
    ):
        self.inputs, self.state = list(inputs), list(state)
        self.graph = torch.cuda.CUDAGraph()
        capture = _capture_tidily(self.graph, share) if tidy else _capture_fast(self.graph, share)
        with undisturbed(), capture:
            self.set_state(function())

    def replay(self, inputs: Iterable[Tensor]) -> None:
        for static, new in zip(self.inputs, inputs, strict=True):
            static.copy_(new)
        self.graph.replay()

    def set_state(self, state: Iterable[Tensor]) -> None:
        for static, new in zip(self.state, state, strict=True):
            if new.data_ptr() != static.data_ptr():        # a KV cache is written in place
                static.copy_(new)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Around a capture on the current device: garbage collection is off, and a failure leaves the generator usable.

    A CUDA graph that is collected while another is captured spoils it, and Python may collect at any moment.
    """
    device = torch.cuda.current_device()
    rng_state, collects = torch.cuda.get_rng_state(device), gc.isenabled()
    gc.disable()
    try:
        yield
    except RuntimeError:
        _restore_generator(device, rng_state)
        raise
    finally:
        if collects:
            gc.enable()


def _restore_generator(device: int, rng_state: Tensor) -> None:
    """A capture that fails leaves the random generator as if it went on: it gets a new state, at the same place."""
    torch.cuda.synchronize(device)
    new = torch.Generator(f"cuda:{device}").graphsafe_get_state()
    torch.cuda.default_generators[device].graphsafe_set_state(new)
    torch.cuda.set_rng_state(rng_state, device)


def _capture_tidily(graph: torch.cuda.CUDAGraph, share: CudaGraph | None) -> AbstractContextManager[None]:
    torch.cuda.synchronize()
    return torch.cuda.graph(graph, pool=share.graph.pool() if share else None)


@contextmanager
def _capture_fast(graph: torch.cuda.CUDAGraph, share: CudaGraph | None) -> Iterator[None]:
    """As torch.cuda.graph without emptying caches, which takes as long as generating a sentence."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # other threads of a server may use the GPU
        graph.capture_begin(pool=share.graph.pool() if share else None, capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)


# Threads. A step of a small network is a thousand small sums. Threads that share one wait for each other, and where
# another program uses their core they wait long: then one thread can be four times as fast as two.

TRIALS = 7          # of each number of threads, in turn; the median counts
LAYERS = 10         # in a trial
WORTH = 1.1         # more threads are taken only if they are faster by this factor


@contextmanager
def fastest_threads() -> Iterator[int]:
    """Inside, torch uses the number of threads that was fastest, and at most as many as it had. Nothing is said here:
    what is trained inside says how many it has, and a mistake in the command is answered by one line alone."""
    given = torch.get_num_threads()
    chosen = choose_threads(given)
    torch.set_num_threads(chosen)
    try:
        yield chosen
    finally:
        torch.set_num_threads(given)


def choose_threads(given: int) -> int:
    """The fewest among 1, 2, 4, … and `given` for which more threads gain too little."""
    counts = sorted({given, *(1 << power for power in range(given.bit_length()) if 1 << power <= given)})
    if len(counts) == 1:
        return given
    times = {count: list[float]() for count in counts}
    for _ in range(TRIALS):
        for count in counts:
            times[count].append(_seconds(count))
    medians = {count: statistics.median(some) for count, some in times.items()}
    best = min(medians.values())
    return next(count for count in counts if medians[count] < WORTH * best)


def _seconds(threads: int) -> float:
    """The time of a few layers as in a small network, forward and backward."""
    torch.set_num_threads(threads)
    vectors, weights = torch.ones(1024, 64), torch.ones(64, 256, requires_grad=True)
    began = time.perf_counter()
    with torch.enable_grad():
        for _ in range(LAYERS):
            gelu(vectors @ weights).sum().backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - began


# Memory. Each step on a CPU takes and frees the same large blocks. glibc gives them back to the system, which has to
# clear every page again when the next step takes it: some thousand page faults in a step of a small network.

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3    # numbers of malloc.h
KEPT = 1 << 30                                 # bytes that may lie free
LARGEST = 1 << 25                              # bytes of the largest block that is kept, the most that may be asked for


def keep_freed_memory() -> None:
    """For the rest of this process. Where the C library is not glibc, nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(M_TRIM_THRESHOLD, KEPT)
    mallopt(M_MMAP_THRESHOLD, LARGEST)
