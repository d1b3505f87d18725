"""One thread: the tensors of the tests are small, and the tests share their cores with whatever else runs."""

import torch

torch.set_num_threads(1)
