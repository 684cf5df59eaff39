"""CPU threads on a busy machine: scoring with an n-gram while another torch program runs on the same cores.

    python benchmarks/speed/threads.py

OpenMP threads that wait spin for GOMP_SPINCOUNT iterations before they sleep; libgomp's default is 300,000, and
chainrule sets 10,000. Each figure is the median over questions to a new process, alone and then beside a neighbour that
multiplies matrices with libgomp's default on all cores.
"""

import os
import statistics
import subprocess
import sys
import time

QUESTIONS = 15
NEIGHBOUR = "import torch; a = torch.rand(300, 300)\nwhile True: a = (a @ a).sin()"


def ask() -> None:
    """In a process of its own: the median milliseconds of one question."""
    import torch

    from chainrule.model import Batch
    from chainrule.models.ngram.ngram import NGram, NGramSettings

    stream = torch.randint(1, 5000, (1, 300_001), generator=torch.Generator().manual_seed(1)) ** 2 // 5000
    stream[:, ::20] = 0
    model = NGram(NGramSettings(order=4), 5000)
    model.update(model.collect(Batch(stream[:, :-1], stream[:, 1:])))
    times = []
    for _ in range(QUESTIONS):
        began = time.perf_counter()
        model.score(stream[:, :80_000], stream[:, 1:80_001], model.start(1))
        times.append(time.perf_counter() - began)
    print(1e3 * statistics.median(times))


def measure(spins: str, threads: str) -> float:
    """Median ms of a new process with these settings."""
    env = os.environ | {"GOMP_SPINCOUNT": spins, "OMP_NUM_THREADS": threads}
    answer = subprocess.run([sys.executable, __file__, "ask"], env=env, capture_output=True, text=True, check=True)
    return float(answer.stdout)


def main() -> None:
    cores = str(os.cpu_count())
    many, few = "300000", "10000"
    ways = {"one thread": (many, "1"), "libgomp's 300,000": (many, cores), "chainrule's 10,000": (few, cores)}
    alone = {name: measure(*way) for name, way in ways.items()}
    neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], env=os.environ | {"GOMP_SPINCOUNT": "300000"})
    try:
        busy = {name: measure(*way) for name, way in ways.items()}
    finally:
        neighbour.kill()
        neighbour.wait()
    print(f"{'ms a question':24}{'alone':>10}{'with a neighbour':>20}")
    for name in ways:
        print(f"{name:24}{alone[name]:10.1f}{busy[name]:20.1f}")


if __name__ == "__main__":
    ask() if sys.argv[1:] == ["ask"] else main()
