"""Losses: plain functions of embeddings that know nothing of replicas or models."""
