"""Claims of a recipe, in a form that histories can be tested for, and what the tests say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from fedoptax.report.paired import compare_seeds
from histories import Step
from measures import NAN, Measure, Table, Test, compare, correct_family, measure_of, rank


@dataclass
class Claim:
    """A sentence of a paper, or ours, with the tests that decide it."""

    says: str
    where: str
    paper: str
    measure: str
    tests: list[Test]

    @property
    def is_ours(self) -> bool:
        """Whether the page's source does not make the claim; it does not count for the verdict."""
        return self.says.startswith("Ours: ")

    @property
    def outcome(self) -> str:
        """It holds if each test says so; else the worst of them."""
        outcomes = {test.outcome for test in self.tests}
        order = ("contradicted", "untested, against", "undecided", "no data", "untested, in line", "holds")
        return next(word for word in order if word in outcomes)


def make_claims(recipe: Mapping[str, Any], steps: Mapping[str, Step], tables: Mapping[str, Table]) -> list[Claim]:
    """Test a recipe's claims; those about differences are one family, those about equality another.

    A claim has `says`, `step`, what `measure_of` takes, and one of these: `above` and `below` (each of the former is
    better than each of the latter, of `other_step` if there is one), `level` and `below` (the best of the former is
    within a point of each of the latter), `above` alone (each is better than itself in `other_step`), `level` alone
    (all are within a point of the best, or each of itself in `other_step`), `gain` (each ends better than it was before
    the first round), `point` (a value of a search is within a point of its best), `near` (more points of a search
    than in `other_step` are so close to their best; with `per`, at the one value of that hyper-parameter where most
    are), `every` (the score of each point is "at least" or "at most" `value`), or `everywhere`: each method of all
    tables is significantly behind the first in one, once all are there.
    """
    claims = []
    again = {
        name: [steps[one["name"]] for one in recipe["steps"] if one.get("repeats") == name and one["name"] in steps]
        for name in steps
    }  # the repetitions of a search with other seeds
    for options in recipe.get("claims", ()):
        if options.get("everywhere") and len(tables) == len(recipe["steps"]):
            names = set.intersection(*({row.name for row in table.rows} for table in tables.values()))
            never = [name for name in names if not any(name in table.behind for table in tables.values())]
            test = Test("each method", "the first", _NOTHING, len(tables), NAN, NAN, NAN, NAN)
            test.decided = "undecided" if never else "holds"
            says = f"{options['says']} ({len(names) - len(never)} of the {len(names)} that ran on all {len(tables)})"
            claims.append(Claim(says, "all", recipe["settings"]["paper"], "as in the tables", [test]))
        if "step" not in options:
            continue
        about = next(one for one in recipe["steps"] if one["name"] == options["step"])
        paper = options.get("paper", about.get("paper", recipe["settings"]["paper"]))
        if not {options["step"], options.get("other_step", options["step"])} <= steps.keys():
            names = [", ".join(options.get(key, ())) for key in ("above", "below")]
            missing = Test(names[0] or ", ".join(options.get("level", ())), names[1], _NOTHING, 0, NAN, NAN, NAN, NAN)
            claims.append(Claim(options["says"], about["title"], paper, "not run yet", [missing]))
            continue
        step = steps[options["step"]]
        measure = measure_of(step, options) if step.runs else _NOTHING
        words = measure.words(step.any_run) if step.runs else f"{step.rule().metric.replace('_', ' ')} of the search"
        if "near" in options:
            at = f", at the {options['per']} that has most" if "per" in options else ""
            words = f"number of grid points with accuracy ≥ best − {options['near']:g}{at}"
        tests = _make_tests(options, step, steps, measure, again)
        claims.append(Claim(options["says"], about["title"], paper, words, tests))
    for equivalence in (False, True):
        correct_family([test for claim in claims for test in claim.tests if test.equivalence == equivalence])
    return claims


_NOTHING = Measure("", True)


def _make_tests(
    options: Mapping[str, Any], step: Step, steps: Mapping[str, Step], measure: Measure,
    again: Mapping[str, Sequence[Step]],
) -> list[Test]:  # fmt: skip
    other = steps[options.get("other_step", step.name)]
    if "near" in options:
        ours, others = (
            {
                of_seed.seed: count_near(of_seed, options["near"], options.get("per"))
                for of_seed in (one, *again[one.name])
            }
            for one in (step, other)
        )
        seeds = ours.keys() & others.keys()
        label, other_label = (
            f"{fmean(counts[seed] for seed in seeds):.3g} points of {one.name}"
            for counts, one in ((ours, step), (others, other))
        )
        paired = compare_seeds(ours, others)
        return [Test(label, other_label, Measure("points", True), *paired[:4], paired.p_differs)]
    if "below" in options:
        ours = options.get("above") or rank(step, options["level"], measure)[:1]
        return [compare(a, b, step, measure, "level" in options, other) for a in ours for b in options["below"]]
    if other is not step:  # each beside itself
        tests = [
            compare(name, name, step, measure, "level" in options, other)
            for name in options.get("level") or options["above"]
        ]
        return [replace(test, other=f"{test.one} in {other.name}") for test in tests]
    if "level" in options:
        first, *others = rank(step, options["level"], measure)
        return [compare(first, other, step, measure, equivalence=True) for other in others]
    if "gain" in options:
        start = replace(measure, rounds=(0, 0))
        tests = [compare(name, name, step, measure, other_measure=start) for name in options["gain"]]
        return [replace(test, other="its start") for test in tests]
    if "point" in options:
        point = options["point"]
        found = {one.seed: one.scores for one in (step, *again[step.name])}
        its = {
            seed: next(score for values, score in scores if values | point == values) for seed, scores in found.items()
        }
        paired = compare_seeds(its, {seed: scores[0][1] for seed, scores in found.items()})
        share = Measure(step.rule().metric, step.rule().higher_is_better)
        label = ", ".join(f"{name} {value}" for name, value in point.items())
        return [Test(label, "the best", share, *paired[:4], paired.p_within_point, equivalence=True)]
    scores = step.scores
    least = options["every"] == "at least"
    met = [score >= options["value"] if least else score <= options["value"] for _, score in scores]
    test = Test(
        f"{sum(met)} of {len(met)} points", f"{options['every']} {options['value']}", measure, 1, NAN, NAN, NAN, NAN
    )
    test.decided = "holds" if all(met) else "contradicted"
    return [test]


def count_near(step: Step, distance: float, per: str | None = None) -> int:
    """Count the points of a search that are at most so far from its best; with `per`, at the value where most are."""
    scores = step.scores
    near = [values.get(per) for values, score in scores if abs(score - scores[0][1]) <= distance]
    return max(map(near.count, near))


def verdict(claims: Sequence[Claim]) -> str:
    """One word for a page: what became of its claims, but not of those beside them that are ours."""
    claims = [claim for claim in claims if not claim.is_ours]
    outcomes = {claim.outcome for claim in claims}
    if outcomes == {"holds"}:
        return "reproduced"
    words = {"holds": "partly", "contradicted": "not reproduced", "undecided": "not reproduced (undecided)"}
    found = [word for outcome, word in words.items() if outcome in outcomes]
    tried = {test.outcome for claim in claims for test in claim.tests} - {"no data"}
    return found[0] if found else "not reproduced (untested)" if tried else "open"
