import threading

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    for each in threading.enumerate():
        if each is not threading.current_thread():
            each.join()
    dist.destroy_process_group()
    while threading.active_count() > 1:
        pass
    print("alone")


if __name__ == "__main__":
    main()
