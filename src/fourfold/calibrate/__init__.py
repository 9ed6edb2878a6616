"""Measures the machine it runs on: kernels, whole segments and collectives, with one rank running and with several at once."""
