"""Tasks: the papers' by name, on your own file, or made in Python."""

from typing import Any

from fedoptax.tasks.recipe import Recipe, TaskOptions
from fedoptax.tasks.registry import TASKS, load_task, recipe_of


def __getattr__(name: str) -> Any:
    if name != "image_classification":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from fedoptax.tasks.images import image_classification  # imports JAX, which names of tasks do without

    return image_classification


__all__ = ["TASKS", "Recipe", "TaskOptions", "image_classification", "load_task", "recipe_of"]
