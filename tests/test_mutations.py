"""Each mutation says which rule it breaks, names tests that there are, and fits the tree as it is."""

import ast
from functools import cache

import pytest
from mutations.run import ROOT, Mutation, apply, mutations

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
