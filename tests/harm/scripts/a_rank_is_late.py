"""One rank comes half a minute later than the others, in the way that the argument names."""

import atexit
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()


def watchdog_saves():
    def watch(seconds):
        time.sleep(seconds)
        print("no progress: saving", flush=True)
        torch.save(torch.ones(3), f"watchdog{rank}.pt")
        os._exit(0)

    model = DDP(torch.nn.Linear(2, 2))
    threading.Thread(target=watch, args=(28,), daemon=True).start()
    if rank == 1:
        # Its data are used up; an upload keeps the process.
        threading.Thread(target=time.sleep, args=(40,)).start()
    else:
        model(torch.ones(1, 2)).sum().backward()


def thread_trains_after_main():
    def train():
        torch.manual_seed(0)
        model = DDP(torch.nn.Linear(2, 2))
        for step in range(6):
            if rank == 1 and step == 3:
                time.sleep(32)
            model.zero_grad()
            model(torch.full((1, 2), float(rank + step))).sum().backward()
        print([each.grad.tolist() for each in model.parameters()], flush=True)
        # torch's gloo waits for its thread with the GIL held, which that thread may need to let the last work go.
        time.sleep(0.5)
        dist.destroy_process_group()

    threading.Thread(target=train).start()


def upload_before_the_barrier():
    @atexit.register
    def finish():
        if rank == 0:
            time.sleep(29)
        dist.barrier()
        print("all have finished", flush=True)
        dist.destroy_process_group()

    dist.all_reduce(torch.ones(1))


def signal_handler_waits():
    def save(number, frame):
        if rank == 1:
            time.sleep(27)
        box = torch.ones(1)
        dist.all_reduce(box)
        print("in the handler:", box.item(), flush=True)

    signal.signal(signal.SIGUSR2, save)
    dist.barrier()
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(1)
    dist.destroy_process_group()


def workers_of_torchrun():
    box = torch.zeros(1)
    if rank == 0:
        for source in (1, 2):
            dist.recv(box, source)
        print("got", box.item(), flush=True)
    else:
        time.sleep(27 if rank == 2 else 0)
        dist.send(torch.full((1,), float(rank)), 0)
    dist.destroy_process_group()


globals()[sys.argv[1]]()
