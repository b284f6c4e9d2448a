"""Runs of the embedded model with one planted fault, and healthy ones, for benchmarks/diagnosis.py."""
