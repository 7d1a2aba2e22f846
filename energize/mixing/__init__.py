"""Weights that follow the loss: policies, which are told losses by source and answer weights."""

from energize.mixing.excess_loss import ExcessLoss
from energize.mixing.loss_curves import LossCurves
from energize.mixing.policy import MixingPolicy
from energize.mixing.unimax import unimax

__all__ = ["ExcessLoss", "LossCurves", "MixingPolicy", "unimax"]
