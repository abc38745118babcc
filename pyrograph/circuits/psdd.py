"""Probabilistic sentential decision diagrams, as published, read as circuits.

    literal: [x_v = s],    terminal: Bernoulli(x_v),    decision: sum_k theta_k prime_k(x) sub_k(x)

The primes of a decision node are over the variables of the left branch of its vtree node, its subs
over those of the right; primes exclude each other, so the circuit is structured and deterministic.
Files repeat equal nodes; here they are one unit.

Text format: ``c`` comments; ``psdd COUNT``; ``L id vtree literal``; ``T id vtree variable
log(theta)``; ``D id vtree k (prime sub log(theta))*k``; children before parents, the root last;
variables from 1, a negative literal is "false".

Source: Kisa, Van den Broeck, Choi & Darwiche (2014).
"""

from __future__ import annotations

import math
import os

from pyrograph.circuits.builder import Builder
from pyrograph.circuits.circuit import Circuit
from pyrograph.circuits.structure.vtree import Line, lines_of, read_vtree


def read_psdd(psdd: str | os.PathLike[str], vtree: str | os.PathLike[str]) -> Circuit:
    """A circuit over binary variables 0, 1, ..., float64.

    Nodes find their place in the vtree by their variables: published files number the vtree's nodes
    one way in the PSDD (in order) and another way in the vtree.

    Args:
        psdd, vtree: paths.

    Raises:
        DataFormatError: naming file and line.
    """
    tree = read_vtree(vtree)
    leaves = {variable: leaf for leaf, variable in tree.variable.items()}
    above = {children: node for node, children in tree.children.items()}
    build = Builder([2] * tree.num_variables)
    units: dict[int, tuple[int, int]] = {}  # id -> (unit, vtree node)
    line, unit, node = None, -1, -1
    for line in lines_of(psdd, "psdd"):
        if len(line.words) < 4:
            line.fail("a line has a kind, an id, a vtree node and more")
        number = line.integer(1, "the id")
        if number in units:
            line.fail(f"there is a node {number} already")
        if line.words[0] == "L":
            unit, node = _literal(line, leaves, build)
        elif line.words[0] == "T":
            unit, node = _terminal(line, leaves, build)
        elif line.words[0] == "D":
            unit, node = _decision(line, above, units, build)
        else:
            line.fail(f"a line begins with L, T or D, not {line.words[0]!r}")
        units[number] = unit, node
    if node != tree.root:
        line.fail("the last node does not have all the variables of the vtree")
    return build.circuit(unit)


def _literal(line: Line, leaves: dict[int, int], build: Builder) -> tuple[int, int]:
    line.has(4, "L id vtree literal")
    literal = line.integer(3, "the literal")
    variable = abs(literal) - 1
    return build.indicator(_known(line, variable, leaves), int(literal > 0)), leaves[variable]


def _terminal(line: Line, leaves: dict[int, int], build: Builder) -> tuple[int, int]:
    line.has(5, "T id vtree variable log(theta)")
    variable = _known(line, line.integer(3, "the variable") - 1, leaves)
    log_true = line.real(4, "log(theta)")
    if log_true > 0:
        line.fail(f"log(theta) is {log_true}, of a probability above 1")
    missing = -math.expm1(log_true)
    log_probs = (math.log(missing) if missing else -math.inf, log_true)
    return build.categorical(variable, log_probs), leaves[variable]


def _known(line: Line, variable: int, leaves: dict[int, int]) -> int:
    if variable not in leaves:
        line.fail(f"the vtree has no variable {variable + 1}")
    return variable


def _decision(
    line: Line,
    above: dict[tuple[int, int], int],
    units: dict[int, tuple[int, int]],
    build: Builder,
) -> tuple[int, int]:
    count = line.integer(3, "the number of elements")
    if count < 1:
        line.fail("a decision node has at least one element")
    line.has(4 + 3 * count, f"D id vtree {count} (prime sub log(theta)) ...")
    products, log_weights, places = [], [], set()
    for k in range(4, len(line.words), 3):
        pair = [line.integer(k, "a prime"), line.integer(k + 1, "a sub")]
        for number in pair:
            if number not in units:
                line.fail(f"the node {number} does not come before")
        (prime, left), (sub, right) = (units[number] for number in pair)
        if (left, right) not in above:
            line.fail(
                f"the variables of prime {pair[0]} and sub {pair[1]} are not the left and the "
                "right branch of any node of the vtree"
            )
        places.add(above[left, right])
        log_weight = line.real(k + 2, "log(theta)")
        if log_weight == math.inf:
            line.fail("log(theta) is infinite")
        products.append(build.product((prime, sub)))
        log_weights.append(log_weight)
    if len(places) > 1:
        line.fail("elements have different variables")
    return build.sum(products, log_weights), places.pop()
