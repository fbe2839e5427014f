"""Each mutation says which rule it breaks, names tests that there are, and fits the tree as it is."""

import ast
from functools import cache

import pytest
from mutations.run import ROOT, Mutation, apply, drawn, mutations

pytestmark = pytest.mark.repository

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def functions(file: str) -> frozenset[str]:
    return frozenset(node.name for node in ast.parse((ROOT / file).read_bytes()).body if isinstance(node, _FUNCTIONS))


@pytest.mark.parametrize("mutation", mutations(), ids=lambda mutation: mutation.name)
def test_a_mutation_fits(mutation: Mutation) -> None:
    assert mutation.rule.endswith(".")
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions(file), f"{test} is not there"
    apply(mutation, ROOT, "--check")


def test_no_two_break_the_same_rule() -> None:
    rules = [mutation.rule for mutation in mutations()]
    assert len(rules) == len(set(rules))
    assert len(rules) >= 60


def test_each_commit_draws_others_and_all_that_changed() -> None:
    all_of_them = mutations()
    draws = [drawn(all_of_them, 3, str(commit), ()) for commit in range(40)]
    assert all(len(all_of_them) / 4 < len(draw) < len(all_of_them) / 2 for draw in draws)
    assert {mutation.name for draw in draws for mutation in draw} == {mutation.name for mutation in all_of_them}
    assert drawn(all_of_them, 3, "0", ()) == draws[0]
    left = next(mutation for mutation in all_of_them if mutation not in draws[0])
    assert left in drawn(all_of_them, 3, "0", [f"tests/mutations/{left.name}.patch"])
    changed = drawn(all_of_them, 3, "0", left.files)
    assert all(mutation in changed for mutation in all_of_them if set(mutation.files) & set(left.files))
