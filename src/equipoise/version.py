"""The version of Equipoise, here and nowhere else."""

__version__ = "0.2.0.dev0"
