"""A linear program put together row by row and solved by HiGHS.

Planning never imports this: SciPy takes longer to import than a plan takes to make.

Source: Huangfu and Hall, "Parallelizing the dual revised simplex method" (2018), through scipy.optimize.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NewType

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

Variable = NewType("Variable", int)
#: A coefficient times a variable; a variable may occur in several.
Term = tuple[float, Variable]


@dataclass(slots=True)
class _Rows:
    """Rows of one sense, as triplets of a sparse matrix."""

    coefficients: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def add(self, terms: Iterable[Term], limit: float) -> None:
        for coefficient, variable in terms:
            self.coefficients.append(coefficient)
            self.rows.append(len(self.limits))
            self.columns.append(variable)
        self.limits.append(limit)

    def matrix(self, variables: int) -> csr_array:
        return csr_array((self.coefficients, (self.rows, self.columns)), shape=(len(self.limits), variables))


class LinearProgram:
    """Minimises a sum over variables that are never negative."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._upper: list[float] = []
        self._at_most = _Rows()
        self._equal = _Rows()

    def variable(self, *, cost: float = 0.0, at_most: float = np.inf) -> Variable:
        """Add a variable in [0, at_most]."""
        self._costs.append(cost)
        self._upper.append(at_most)
        return Variable(len(self._costs) - 1)

    def at_most(self, terms: Iterable[Term], limit: float) -> None:
        """Demand that the terms' sum be at most the limit."""
        self._at_most.add(terms, limit)

    def equal(self, terms: Iterable[Term], value: float) -> None:
        """Demand that the terms' sum be the value."""
        self._equal.add(terms, value)

    def minimum(self) -> float:
        """Return the least cost.  A program without a solution is a defect of who built it."""
        count = len(self._costs)
        solved = linprog(
            self._costs,
            A_ub=self._at_most.matrix(count),
            b_ub=self._at_most.limits,
            A_eq=self._equal.matrix(count),
            b_eq=self._equal.limits,
            bounds=np.column_stack((np.zeros(count), self._upper)),
            method="highs-ds",
        )
        assert solved.success, solved.message
        return float(solved.fun)
