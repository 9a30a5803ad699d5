"""The attention kernel of a CUDA device; the contract holds those of a CPU."""

from __future__ import annotations

import pytest
import torch

from pipeline.drafter.model.attention import CudaFlash, agrees


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_kernel_of_a_cuda_device_passes_the_check(dtype: torch.dtype) -> None:
    assert agrees(CudaFlash(), torch.device("cuda"), dtype, 128)
