"""Tasks: the papers' tasks by name, tasks on your own file, or made in Python."""

from fedoptax.tasks.recipe import Recipe, TaskOptions, defer_import
from fedoptax.tasks.registry import TASKS, load_task, recipe_of

image_classification = defer_import("tasks.images:image_classification")  # JAX, which names of tasks do without
