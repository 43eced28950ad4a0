"""Zeroth-order training: directions, estimators, perturbed evaluation."""
