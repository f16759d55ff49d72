"""
Making a dictionary from a process that is started for it.

    making     start, wait, train, check: one dictionary
    recipes    the processes that the prebuilt dictionaries are made from
    traces     what must not be in a dictionary that leaves this machine
    programs/  what those processes run: generated data only
"""

from agentzip.training.making import Made, Trainer, make
from agentzip.training.recipes import RECIPES, Recipe, command_recipe
from agentzip.training.traces import machine_words, traces

__all__ = [
    "RECIPES",
    "Made",
    "Recipe",
    "Trainer",
    "command_recipe",
    "machine_words",
    "make",
    "traces",
]
