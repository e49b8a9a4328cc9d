"""Tasks: the papers' by name, on your own file, or made in Python."""

from fedoptax.tasks.images import image_classification
from fedoptax.tasks.recipe import Recipe, TaskOptions
from fedoptax.tasks.registry import TASKS, load_task, recipe_of

__all__ = ["TASKS", "Recipe", "TaskOptions", "image_classification", "load_task", "recipe_of"]
