"""Slow, literal twins of the algorithms, in the linear domain: s itself, never its logarithm.

Nothing here knows scdro. Numbers are float64, or mpmath's where a vector of `object` dtype comes in
(`precise`): there exp(20/1e-3) is just a number. At step t a twin evaluates the batch at x_t =
(w_t, lam_t), moves its estimators, and then steps to x_{t+1} = Proj_X(x_t - eta z_t).
"""

import math
from collections import deque

import mpmath
import numpy as np
from scipy.optimize import brentq

INF = math.inf


def precise(array):
    """The array in 60-digit numbers."""
    mpmath.mp.dps = 60
    return np.vectorize(mpmath.mpf, otypes=[object])(np.asarray(array, dtype=float))


def exp(a):
    return (
        np.vectorize(mpmath.exp, otypes=[object])(a) if np.asarray(a).dtype == object else np.exp(a)
    )


def log(a):
    return mpmath.log(a) if isinstance(a, mpmath.mpf) else math.log(a)


def norm(a):
    return mpmath.sqrt((a * a).sum()) if a.dtype == object else math.sqrt((a * a).sum())


class Logistic:
    """Multinomial logistic regression by hand; w holds the k x d weights row by row, then k biases."""

    def __init__(self, features, labels, classes):
        self.x, self.y, self.k = np.asarray(features), np.asarray(labels), classes

    def batch(self, index):
        """A function of w: the losses of these samples, and their gradients, one a row."""

        def evaluate(w):
            x, y = self.x[index], self.y[index]
            d, rows = x.shape[1], np.arange(len(y))
            logits = x @ w[: self.k * d].reshape(self.k, d).T + w[self.k * d :]
            odds = np.exp(logits)
            losses = np.log(odds.sum(1)) - logits[rows, y]
            residual = odds / odds.sum(1, keepdims=True)
            residual[rows, y] -= 1
            outer = residual[:, :, None] * x[:, None, :]
            return losses, np.concatenate([outer.reshape(len(y), -1), residual], axis=1)

        return evaluate


class Twin:
    """x = (w, lam), the feasible set X = {|w| <= R} x [lam0, lam_max], and the step sizes of the present stage.

    `scale` (times eta) and `wd` may be vectors: parameter groups. `lam_eta` is lam's own step size,
    eta if None.
    """

    def __init__(
        self,
        w,
        lam,
        rho,
        eta,
        beta,
        *,
        lam0=1e-3,
        bound=None,
        radius=None,
        wd=0.0,
        mu=0.0,
        scale=1.0,
        lam_eta=None,
        stages=None,
    ):
        self.w, self.lam, self.rho, self.lam0, self.scale = w, lam, rho, lam0, scale
        self.bound, self.radius, self.wd, self.mu = bound, radius, wd, mu
        self.lam_max = INF if bound is None else lam0 + bound / rho
        self.eta, self.beta, self.lam_eta = eta, beta, lam_eta
        self.s = self.v = self.u = None
        self.t = self.resets = self.k = 0
        self.stages = stages
        if stages is not None:
            self.eta, self.beta, self.left = stages[0]

    def step(self, evaluate, weight=None):
        self.move(evaluate, weight)
        self.t += 1
        if (
            self.stages is not None
        ):  # Algorithm 3: (x, v, u, s) are carried over, eta, beta and T change
            self.left -= 1
            if self.left == 0 and self.k + 1 < len(self.stages):
                self.k += 1
                self.eta, self.beta, self.left = self.stages[self.k]

    def project(self, dw, du):
        lam_eta = self.eta if self.lam_eta is None else self.lam_eta
        self.w = self.w - self.eta * self.scale * dw
        self.lam = min(max(self.lam - lam_eta * du, self.lam0), self.lam_max)
        if self.radius is not None and norm(self.w) > self.radius:
            self.w = self.w * (self.radius / norm(self.w))

    @property
    def log_s(self):
        return log(self.s)


def base(losses, weight):
    """The batch's base probabilities."""
    weight = np.ones(len(losses)) if weight is None else np.asarray(weight, dtype=float)
    return weight / weight.sum()


class Scdro(Twin):
    """Algorithm 1; with `stages`, RSCDRO. mu x_t and weight decay enter the moving average."""

    def move(self, evaluate, weight):
        lam = self.lam
        losses, gradients = evaluate(self.w)
        q = base(losses, weight)
        g = exp(losses / lam)
        ghat, dw_g, dlam_g = (
            (q * g).sum(),
            (q * g / lam) @ gradients,
            (q * -g * losses / lam**2).sum(),
        )
        b = 1.0 if self.t == 0 else self.beta
        past_s, past_v, past_u = (0.0, 0.0, 0.0) if self.t == 0 else (self.s, self.v, self.u)
        self.s = (1 - b) * past_s + b * ghat
        self.v = (1 - b) * past_v + b * (lam / self.s * dw_g + (self.wd + self.mu) * self.w)
        self.u = (1 - b) * past_u + b * (
            lam / self.s * dlam_g + log(self.s) + self.rho + self.mu * lam
        )
        self.project(self.v, self.u)


class Ascdro(Twin):
    """Algorithm 2; with `stages`, RASCDRO. v and u track the gradients of g; weight decay and mu x_t go to z."""

    def move(self, evaluate, weight):
        lam, b = self.lam, self.beta
        ghat, dw_g, dlam_g = self.estimates(evaluate, weight, self.w, lam)
        if self.t == 0:
            self.s, self.v, self.u = ghat, dw_g, dlam_g
        else:
            ghat_old, dw_old, dlam_old = self.estimates(evaluate, weight, *self.previous)
            s = ghat + (1 - b) * (self.s - ghat_old)
            if s < max(b * ghat, 1e-8 * max(ghat, ghat_old, self.s)):
                self.s, self.v, self.u = ghat, dw_g, dlam_g
                self.resets += 1
            else:
                self.s = s
                self.v = dw_g + (1 - b) * (self.v - dw_old)
                self.u = dlam_g + (1 - b) * (self.u - dlam_old)
        dw, r = lam / self.s * self.v, self.u / self.s
        if (
            self.bound is not None
        ):  # section 5: L in [0, C/lam] and -lam^2 r in [0, C], v/s and r as they are
            self.s = min(max(self.s, 1.0), math.exp(self.bound / lam))
            r = -min(max(-(lam**2) * r, 0.0), self.bound) / lam**2
            self.v, self.u = dw * self.s / lam, r * self.s
        self.previous = (self.w, lam)
        self.project(
            dw + (self.wd + self.mu) * self.w, lam * r + log(self.s) + self.rho + self.mu * lam
        )

    def estimates(self, evaluate, weight, w, lam):
        losses, gradients = evaluate(w)
        q = base(losses, weight)
        g = exp(losses / lam)
        return (q * g).sum(), (q * g / lam) @ gradients, (q * -g * losses / lam**2).sum()


class Recover:
    """RECOVER (Qi et al. 2021): STORM on g_i(w) = exp(l_i(w)/lam) and its gradient, lam fixed, no resets."""

    def __init__(self, w, lam, eta, beta):
        self.w, self.lam, self.eta, self.beta = w, lam, eta, beta
        self.s = None

    def step(self, evaluate):
        s, v = self.sample(evaluate, self.w)
        if self.s is not None:
            s_old, v_old = self.sample(evaluate, self.w_past)
            s, v = s + (1 - self.beta) * (self.s - s_old), v + (1 - self.beta) * (self.v - v_old)
        self.s, self.v, self.w_past = s, v, self.w
        self.w = self.w - self.eta * self.lam * self.v / self.s

    def sample(self, evaluate, w):
        losses, gradients = evaluate(w)
        g = np.exp(losses / self.lam)
        return g.mean(), (g[:, None] * gradients / self.lam).mean(0)


class Default(Twin):
    """The default: lam by a Newton step on the recent losses, s carried to lam_t as s^(lam_{t-1}/lam_t) and capped.

    Before a batch, s is at most `lag` times the mean over the last batch or over the newest quarter
    of the recent losses, whichever is larger. It is carried in the same way.

    Weight decay and mu enter the moving average of SCDRO, and the direction of ASCDRO.
    """

    def __init__(
        self,
        w,
        rho,
        eta,
        beta,
        *,
        lam=None,
        cap=2.0,
        clip=0.3,
        lag=1.5,
        memory=None,
        window,
        trim=0.0,
        storm=False,
        ceiling_lams=0.0,
        **more,
    ):
        super().__init__(w, lam, rho, eta, beta, **more)
        self.cap, self.clip, self.trim, self.storm, self.memory = cap, clip, trim, storm, memory
        self.recent = deque(maxlen=window)
        self.ceiling = self.top = INF
        self.ceiling_lams, self.topped = ceiling_lams, 0
        self.capped = self.clipped = False
        self.lag, self.newest_mean = INF if lag is None else lag, 1.0
        self.empty = self.late = self.unbounded = 0

    def move(self, evaluate, weight):
        losses, gradients = evaluate(self.w)
        weight = np.ones(len(losses)) if weight is None else np.asarray(weight, dtype=float)
        if self.t == 0:
            self.ceiling = ceiling(losses, weight, self.trim)
            if self.lam is None:
                keep = losses <= self.ceiling
                rho = attainable(self.rho, weight[keep])
                self.lam = min(
                    root(losses[keep], weight[keep], rho, self.lam0, self.mu), self.lam_max
                )
        lam, b = self.lam, self.beta
        ghat, g_mean = self.estimate(losses, gradients, weight)
        self.empty += ghat == 0.0
        decay = (self.wd + self.mu) * self.w
        if self.t == 0:
            self.s = ghat
            self.v = g_mean / self.s + (0.0 if self.storm else decay)
        else:
            past, most = (
                self.s ** (self.lam_past / lam),
                self.lag * self.newest_mean ** (self.lam_past / lam),
            )
            self.late += past > most
            past = min(past, most)
            r = self.rate(weight)
            self.s = max((1 - r) * past + r * ghat, ghat / self.cap) if r < 1 or ghat > 0 else past
            self.capped = self.s == ghat / self.cap
            gradient = g_mean / self.s
            if self.storm:
                ghat_old, g_old = self.estimate(*evaluate(self.w_past), weight)
                change = (1 - b) * (gradient - g_old / max(past, ghat_old / self.cap))
                limit = (1 - b) * self.clip * min(norm(gradient), norm(self.v))
                self.clipped = norm(change) > limit
                if self.clipped:
                    change = change * (limit / norm(change))
                self.v = (1 - b) * self.v + b * gradient + change
            else:
                self.v = (1 - b) * self.v + b * (gradient + decay)
        if self.bound is not None:
            self.s = min(max(self.s, 1.0), math.exp(self.bound / lam))
        self.lam_past, self.w_past = lam, self.w
        self.project(self.v + (decay if self.storm else 0.0), 0.0)
        live, most = np.flatnonzero(weight > 0), self.recent.maxlen
        if (
            len(live) > most
        ):  # those whose multiples of the golden ratio have the smallest fractional parts
            live = live[
                np.sort(np.argsort([k * 2654435761 % 2**32 for k in range(len(live))])[:most])
            ]
        self.recent.extend(zip(losses[live], weight[live], strict=True))
        self.lam = min(max(lam * math.exp(self.newton(lam)), self.lam0), self.lam_max)
        self.newest_mean = max(self.newest_quarter(lam), ghat)
        self.unbounded += self.newest_mean == INF
        if not self.trim and self.ceiling_lams is not None:
            self.top = max(l for l, _ in self.recent) + self.ceiling_lams * self.lam

    def rate(self, weight):
        """B/(B + memory), at least beta, where B is the effective number of samples; beta without a memory."""
        size = weight.sum() ** 2 / (weight**2).sum()
        return self.beta if self.memory is None else max(self.beta, size / (size + self.memory))

    def estimate(self, losses, gradients, weight):
        """mean exp(l/lam) and mean exp(l/lam) grad l over the batch, less what lies above the ceiling, and no loss
        counting for more than the hardest of the recent ones."""
        keep = losses <= self.ceiling
        self.topped += (losses > self.top).any()
        losses = np.minimum(losses, self.top)
        g = np.where(
            keep, weight / weight.sum() * np.exp(np.where(keep, losses, 0.0) / self.lam), 0.0
        ) / (1 - self.trim)
        return g.sum(), g @ gradients

    def newton(self, lam):
        losses, weight = (np.array(column) for column in zip(*self.recent, strict=True))
        self.ceiling = ceiling(losses, weight, self.trim)
        keep = losses <= self.ceiling
        kl, var = divergence(losses[keep], weight[keep], lam)
        target = attainable(self.rho, weight[keep]) + self.mu * lam
        if kl <= 0.0 or var == 0.0:
            return -1.0
        return min(max(math.log(kl / target) / (var / kl + self.mu * lam / target), -1.0), 1.0)

    def newest_quarter(self, lam):
        newest = [
            (l, w)
            for l, w in list(self.recent)[-math.ceil(self.recent.maxlen / 4) :]
            if l <= self.ceiling
        ]
        return (
            sum(w * math.exp(l / lam) for l, w in newest) / sum(w for _, w in newest)
            if newest
            else INF
        )


def attainable(rho, weight):
    """min(rho, log of the larger of sqrt(n) and n/8), n = (sum w)^2 / sum w^2, and at least two."""
    n = max(weight.sum() ** 2 / (weight**2).sum(), 2.0)
    return min(rho, math.log(max(math.sqrt(n), n / 8)))


def divergence(losses, weight, lam):
    """KL(p, q) and Var_p(l/lam) of p ~ q exp(l/lam)."""
    q = weight / weight.sum()
    a = (losses - losses.max()) / lam
    p = q * np.exp(a) / (q * np.exp(a)).sum()
    inside = p > 0
    kl = float((p[inside] * np.log(p[inside] / q[inside])).sum())
    return kl, float((p * (a - p @ a) ** 2).sum())


def root(losses, weight, rho, lam0, mu=0.0):
    """lam with KL(p_lam) = rho + mu lam, or lam0."""

    def excess(log_lam):
        return divergence(losses, weight, math.exp(log_lam))[0] - rho - mu * math.exp(log_lam)

    low, high = (
        math.log(lam0),
        math.log(lam0 + (losses.max() - (weight / weight.sum()) @ losses) / rho),
    )
    if excess(low) <= 0:
        return lam0
    return math.exp(brentq(excess, low, high + 1e-9, xtol=1e-15, rtol=1e-15, maxiter=500))


def ceiling(losses, weight, trim):
    """The hardest loss of which some is kept when the hardest `trim` of the weight is left out."""
    if not trim:
        return INF
    q, before, top = weight / weight.sum(), 0.0, -INF
    for i in np.argsort(losses):
        if q[i] > 0 and before < 1 - trim:
            top = losses[i]
        before += q[i]
    return top


def objective(losses, lam, rho, lam0, weight=None):
    """F(lam) in the linear domain."""
    return lam * log((base(losses, weight) * exp(losses / lam)).sum()) + (lam - lam0) * rho


def gradient(losses, gradients, lam, rho, weight=None):
    """(grad_w F, dF/dlam) by the formulas of section 1."""
    q = base(losses, weight)
    g_i = exp(losses / lam)
    g = (q * g_i).sum()
    d_w, d_lam = (q * g_i / lam) @ gradients, (-q * g_i * losses / lam**2).sum()
    return lam / g * d_w, lam / g * d_lam + log(g) + rho
