"""Settings of the whole test run."""

import os

import torch

# One thread per worker: workers fill the cores, and threads that wait for each other's cores cost many times more.
torch.set_num_threads(1)

# Triton's kernels run in its interpreter where there is no GPU. It is asked for before anything imports Triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
