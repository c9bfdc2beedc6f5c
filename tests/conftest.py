"""Settings of the whole test run."""

import torch

# One thread per worker: workers fill the cores, and threads that wait for each other's cores cost many times more.
torch.set_num_threads(1)
