"""Several ranks without torchrun: `spawn` tells them by their environment which rank they are; this is what they run.

A job is a command line: {"words": ["train", …], "stop": [1, 5, 15]}, where rank 1 (or "all") gets signal 15 in its 5th
step. In its words {rank} stands for the rank. Jobs run one after another, and "code" says how each ended.

Importing torch takes seconds, so ranks are forked from one process that has imported everything: `python ranks.py fork`
reads a line of JSON with groups of ranks, and answers with their exit codes. Under torchrun the script runs as it is.
"""

import atexit
import gc
import json
import os
import resource
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def forker():
    """The process from which ranks are forked; one for all tests of this process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, __file__, "fork"], env=environment, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(process.communicate)                   # it ends with its input
    return process


def run_groups(groups, folder, limit=None):
    """Groups of ranks side by side: name -> (size, jobs). Size 0: a process that is no rank. Returns exit codes.

    `limit`: most bytes in a file that they write.
    """
    for name, (_, jobs) in groups.items():
        (folder / f"{name}.json").write_text(json.dumps(jobs))
    sizes = {name: size for name, (size, _) in groups.items()}
    process = forker()
    print(json.dumps({"folder": str(folder), "groups": sizes, "limit": limit}), file=process.stdin, flush=True)
    return json.loads(process.stdout.readline())


def spawn(groups, folder):
    """`run_groups`; all must end well."""
    for name, ended in run_groups(groups, folder).items():
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


def fork_groups(folder, groups, limit):
    """In the forker: starts all ranks of all groups, and waits for them."""
    started = {}
    for name, size in groups.items():
        known = {"CHAINRULE_CACHE": folder / "cache"}
        if size:
            known |= {"TORCHELASTIC_RUN_ID": name, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
            known |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        (folder / f"{name}.out").write_text("")
        for rank in range(size or 1):
            process = os.fork()
            if not process:
                known |= {"RANK": rank, "LOCAL_RANK": rank}
                os.environ.update({key: str(value) for key, value in known.items()})
                be_rank(folder, name, limit)
            started.setdefault(name, []).append(process)
    return {name: [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
            for name, processes in started.items()}


def be_rank(folder, name, limit):
    """In a forked process, which ends here."""
    os.chdir(folder)
    output = os.open(f"{name}.out", os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    do_all(Path(f"{name}.json"))
    sys.exit(0)


def do_all(path):
    rank = int(os.environ["RANK"])
    jobs = json.loads(path.read_text())
    for job in jobs:
        job["code"] = do(job, rank)
    path.with_suffix(f".{rank}.json").write_text(json.dumps(jobs))


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


def import_everything():
    """What any rank imports; once here, and it is never looked through for garbage."""
    import torch._dynamo  # torch imports it where the first weights are sharded
    import torch.distributed.checkpoint.hf_storage
    import torch.distributed.fsdp
    from training import worker

    import chainrule.commands.train
    import chainrule.defaults.choose
    import chainrule.training.trainer

    for kind in chainrule.models.KINDS:
        chainrule.models.model_class(kind)
    gc.collect()
    gc.freeze()
    return torch, worker, chainrule


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import torch

    torch.set_num_threads(1)
    if sys.argv[1] != "fork":
        do_all(Path(sys.argv[1]))
        sys.exit(0)
    import_everything()
    for line in sys.stdin:
        asked = json.loads(line)
        ended = fork_groups(Path(asked["folder"]), asked["groups"], asked["limit"])
        print(json.dumps(ended), flush=True)
