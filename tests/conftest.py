"""Settings of the whole test run."""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    # one thread per worker: workers fill the cores, and threads that wait for each other's cores cost many times more
    torch.set_num_threads(1)
