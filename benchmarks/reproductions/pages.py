"""The pages that are made from recipes and histories alone; every measured number in them is looked up.

    python benchmarks/reproductions/pages.py            # write all pages: `make pages`
    python benchmarks/reproductions/pages.py --check    # name those that differ from what would be written

The templates are in pages/; recipes are the NAME.toml beside this file, histories are in runs/.
"""

import argparse
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import claims
import histories
import measures
from claims import Claim
from fedoptax.report.searches import describe_values
from fedoptax.report.words import format_quantity, format_setting, join_words
from histories import Step
from measures import Table

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
PAGES = {
    "README.md.j2": HERE / "README.md",
    "which-method.md.j2": ROOT / "docs" / "which-method.md",
    "results.md.j2": ROOT / "docs" / "results.md",
}


def names() -> list[str]:
    """Name the recipes."""
    return sorted(path.stem for path in HERE.glob("*.toml") if path.stem != "queue")


def read(name: str) -> dict[str, Any]:
    """Read a recipe; a search with `seeds` is followed by its repetitions with each of them, which `repeats` it."""
    recipe = tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))
    for step in [step for step in recipe["steps"] if "seeds" in step]:
        for seed in step.pop("seeds"):
            commands = {kind: f"{step[kind]} --seed {seed}" for kind in ("full", "reduced") if kind in step}
            again = {"name": f"{step['name']}-seed-{seed}", "repeats": step["name"], "figures": []}
            recipe["steps"].append(step | again | commands)
    return recipe


def measured(recipe: Mapping[str, Any]) -> str:
    """Name the settings that the gallery shows: the paper's, unless the recipe has reduced ones."""
    return "reduced" if "reduced" in recipe["settings"] else "full"


@dataclass(frozen=True)
class Recipe:
    """A recipe with what was measured, in its full or its reduced settings."""

    name: str
    kind: str
    text: Mapping[str, Any]

    @property
    def stem(self) -> str:
        """The name of its page and its histories."""
        return self.name if self.kind == measured(self.text) else f"{self.name}-full"

    @cached_property
    def steps(self) -> dict[str, Step]:
        """The steps that were run, in the recipe's order."""
        found = histories.read(self.stem)
        return {step["name"]: found[step["name"]] for step in self.text["steps"] if step["name"] in found}

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables of the comparisons."""
        options = {step["name"]: step for step in self.text["steps"]}
        tables = {name: measures.tabulate(step, options[name]) for name, step in self.steps.items() if step.runs}
        measures.correct_leads(list(tables.values()))
        return tables

    @cached_property
    def claims(self) -> list[Claim]:
        """The recipe's claims with their tests."""
        return claims.make_claims(self.text, self.steps, self.tables)

    @property
    def verdict(self) -> str:
        """One word, from the claims."""
        return claims.verdict(self.claims)

    def repetitions(self, step: str) -> list[Step]:
        """The repetitions of a search with other seeds that were run."""
        return [
            self.steps[s["name"]] for s in self.text["steps"] if s.get("repeats") == step and s["name"] in self.steps
        ]

    def figures(self, step: str) -> list[str]:
        """The figures of a step, beside the page."""
        return [path.name for path in sorted(RESULTS.glob(f"{self.stem}-*.png")) if self._owns(path.name, step)]

    def _owns(self, figure: str, step: str) -> bool:
        rest = figure.removeprefix(f"{self.stem}-")
        owners = [one["name"] for one in self.text["steps"] if rest.startswith(f"{one['name']}-")]
        return max(owners, key=len, default=None) == step


def recipes() -> Iterator[Recipe]:
    """Yield every recipe in the settings that the gallery shows, and in full ones where these were run as well."""
    for name in names():
        text = read(name)
        yield Recipe(name, measured(text), text)
        if (histories.RUNS / f"{name}-full.toml").is_file():
            yield Recipe(name, "full", text)


def render() -> dict[Path, str]:
    """Render every page."""
    env = Environment(
        loader=FileSystemLoader(HERE / "pages"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    env.filters |= {
        "words": join_words,
        "setting": format_setting,
        "bytes": lambda size: format_quantity(size, "B"),
        "p": show_p,
        "median": lambda values: float(np.median(values)),
    }
    env.globals |= {"show": show, "measures": measures, "describe_values": describe_values}
    every = {recipe.stem: recipe for recipe in recipes()}
    page = env.get_template("page.md.j2")
    pages = {RESULTS / f"{stem}.md": page.render(recipe=recipe) for stem, recipe in every.items()}
    pages |= {path: env.get_template(name).render(recipes=every) for name, path in PAGES.items()}
    return {path: re.sub(r"\n{3,}", "\n\n", re.sub(r" +$", "", text, flags=re.M)) for path, text in pages.items()}


def show(value: float, share: bool = False, digits: int = 4) -> str:
    """Write a number: shares in percent with one decimal, others with so many digits; NaN is –, infinity `never`."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "never"
    if share:
        return f"{100 * value:.1f}"
    whole = abs(value) >= 1000 or float(value).is_integer()
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}"


def show_p(p: float) -> str:
    """Write a p-value."""
    return "–" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"


def find_stale(pages: Mapping[Path, str]) -> list[Path]:
    """Name the pages that are not what is rendered, and those of no recipe."""
    stale = [path for path, text in pages.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    return stale + sorted(set(RESULTS.glob("*.md")) - set(pages))


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is not up to date")
    check = parser.parse_args().check
    pages = render()
    stale = find_stale(pages)
    for path in stale:
        print(path.relative_to(ROOT), "is not up to date" if check else "")
        if not check and path in pages:
            path.write_text(pages[path], encoding="utf-8")
        elif not check:
            path.unlink()
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
