"""Tests that need a graphics card."""

from __future__ import annotations

import pytest
import torch

on_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=on_a_card)]
