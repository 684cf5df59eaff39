"""Several ranks without torchrun: `spawn` starts them and tells them by their environment, and this is what they run.

A job is a command line: {"words": ["train", …], "stop": [1, 5, 15]}, where rank 1 (or "all") gets signal 15 in its 5th
step. In its words {rank} stands for the rank. Jobs run one after another, and "code" says how each ended.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path


def start(size, jobs, folder, name):
    """So many ranks in `folder`; 0: a process that nobody calls a rank."""
    (folder / f"{name}.json").write_text(json.dumps(jobs))
    told = {"CHAINRULE_CACHE": folder / "cache", "OMP_NUM_THREADS": 1}
    if size:
        told |= {"TORCHELASTIC_RUN_ID": name, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        told |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    ranks = []
    with (folder / f"{name}.out").open("w") as said:
        for rank in range(size or 1):
            known = {name: str(value) for name, value in (told | {"RANK": rank, "LOCAL_RANK": rank}).items()}
            command = [sys.executable, __file__, f"{name}.json"]
            ranks.append(subprocess.Popen(command, env=os.environ | known, cwd=folder, stdout=said, stderr=said))
    return ranks


def spawn(size, jobs, folder, name):
    """`start`, and wait for the end."""
    ended = [rank.wait(timeout=300) for rank in start(size, jobs, folder, name)]
    assert not any(ended), said(folder, name)


def said(folder, name):
    """By all ranks."""
    return (folder / f"{name}.out").read_text()


def codes(folder, name, rank=0):
    """How each job ended for that rank."""
    return [job["code"] for job in json.loads((folder / f"{name}.{rank}.json").read_text())]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def do(job, rank):
    from training.worker import main

    from chainrule.training.step import Step

    take, (whose, step, number) = Step.take, job["stop"]
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if whose in (rank, "all") and not restarted:
        Step.take = signalled(take, step, number)
    try:
        return main([word.replace("{rank}", str(rank)) for word in job["words"]])
    except SystemExit as ended:
        return ended.code
    finally:
        Step.take = take


def signalled(take, step, number):
    calls = iter(range(1, 1000))

    def take_or_stop(*words):
        if next(calls) == step:
            os.kill(os.getpid(), number)
        return take(*words)

    return take_or_stop


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import torch

    torch.set_num_threads(1)
    path, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    jobs = json.loads(path.read_text())
    for job in jobs:
        job["code"] = do(job, rank)
    path.with_suffix(f".{rank}.json").write_text(json.dumps(jobs))
