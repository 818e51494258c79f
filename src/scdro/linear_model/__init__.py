"""Linear models for the worst case as scikit-learn estimators, with a fast exact solver, and
streams of rows.

How a call of `fit` passes through the files, from the outside in:

1. `_classifier` and `_regressor` check the arguments and encode the targets; `_base` is what they
share.
2. `_linear_problem` states what is minimised, P(w, b), as a function of the scores z = X w + b. It
is made of a
   loss (`_score_losses`) and of the worst case of a vector of losses (`_worst_case`).
3. `_exact` minimises P: steps of Newton's method (`_newton`), whose linear systems are solved with
an approximate
   inverse of the Hessian (`_preconditioner`).
4. `_dual` bounds min P from below. The difference is the certificate, `dual_gap_`.

`partial_fit` replaces step 3 by RSCDRO over batches (`_stochastic`), from a start that step 3
computes. `_threads` divides products with X over the cores.
"""

from scdro.linear_model._classifier import KLDROClassifier
from scdro.linear_model._regressor import KLDRORegressor

__all__ = ["KLDROClassifier", "KLDRORegressor"]
