"""Literal twins of SPD, PG-SMD2 and AccMDA: linear domain, scipy and Lambert's W, one sample at a time."""

import math

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import lambertw

from logistic import N

RHO = 0.3


def kl(p):
    p = np.asarray(p)
    return float(np.sum(p[p > 0] * np.log(p[p > 0] * len(p))))


def temper(q, rho):
    q = q / q.sum()
    if kl(q) <= rho:
        return q

    def p(nu):
        e = q ** (1 / (1 + nu))
        return e / e.sum()

    return p(brentq(lambda nu: kl(p(nu)) - rho, 0.0, 1e6, xtol=1e-15))


def nearest(z, rho):
    """Two nested roots with Lambert's W, as the formula is written."""
    low = z.max() - 1.0
    simplex = np.maximum(
        z - brentq(lambda m: np.maximum(z - m, 0).sum() - 1, low, z.max(), xtol=1e-16), 0
    )
    if kl(simplex) <= rho:
        return simplex

    def p(nu):
        def at(m):
            return nu * lambertw(np.exp((z - m) / nu) / nu).real

        high = z.max() + nu * math.log(len(z))
        return at(brentq(lambda m: at(m).sum() - 1, low, high, xtol=1e-16))

    return p(math.exp(brentq(lambda t: kl(p(math.exp(t))) - rho, -6.5, 3.0, xtol=1e-15)))


class SpdTwin:
    def __init__(self, w, lr, dual_lr, rho, wd=0.0, uniform=False):
        self.w, self.lr, self.dual_lr, self.rho, self.wd, self.uniform = (
            w,
            lr,
            dual_lr,
            rho,
            wd,
            uniform,
        )
        self.p = np.full(N, 1 / N)

    def step(self, index, evaluate):
        losses, gradients = evaluate(self.w)
        size = len(index)
        weights = N * self.p[index] / size if self.uniform else np.full(size, 1 / size)
        ascent = np.zeros(N)
        for i, l in zip(index, losses, strict=True):
            ascent[i] += l * N / size if self.uniform else l / (size * self.p[i])
        self.w = self.primal(weights @ gradients + self.wd * self.w)
        self.p = temper(self.p * np.exp(self.dual_rate() * ascent), self.rho)

    def primal(self, gradient):
        return self.w - self.lr * gradient

    def dual_rate(self):
        return self.dual_lr


class PgsmdTwin(SpdTwin):
    def __init__(self, *args, gamma, length, everything, **more):
        super().__init__(*args, **more)
        self.gamma, self.length, self.everything, self.k = gamma, length, everything, 0
        self.begin()

    def begin(self):
        self.k += 1
        self.anchor, self.visited = self.w, []
        losses = self.everything(self.w)[0]

        def p(lam):
            e = np.exp((losses - losses.max()) / lam)
            return e / e.sum()

        self.p = p(math.exp(brentq(lambda t: kl(p(math.exp(t))) - self.rho, -5, 8, xtol=1e-14)))

    def step(self, index, evaluate):
        super().step(index, evaluate)
        if len(self.visited) == self.k * self.length:
            self.w = np.mean(self.visited, axis=0)
            self.begin()

    def primal(self, gradient):
        eta = self.lr / self.k
        w = minimize(
            lambda v: (
                gradient @ v
                + self.gamma / 2 * ((v - self.anchor) ** 2).sum()
                + ((v - self.w) ** 2).sum() / 2 / eta
            ),
            self.w,
            jac=lambda v: gradient + self.gamma * (v - self.anchor) + (v - self.w) / eta,
            tol=1e-13,
        ).x
        self.visited.append(w)
        return w

    def dual_rate(self):
        return self.dual_lr / self.k


class AccmdaTwin:
    def __init__(self, w, lr, dual_lr, rho, k=1.0, m=8.0, c=4.0):
        self.w, self.lr, self.dual_lr, self.rho, self.k, self.m, self.c = (
            w,
            lr,
            dual_lr,
            rho,
            k,
            m,
            c,
        )
        self.y, self.t = np.full(N, 1 / N), 0

    def gradients(self, w, y, index, evaluate):
        losses, gradients = evaluate(w)
        dual = np.zeros(N)
        for i, l in zip(index, losses, strict=True):
            dual[i] += N * l / len(index)
        return (N * y[index] / len(index)) @ gradients, dual

    def eta(self, t):
        return self.k / (self.m + t) ** (1 / 3)

    def step(self, index, evaluate):
        g, d = self.gradients(self.w, self.y, index, evaluate)
        if self.t == 0:
            self.v, self.u = g, d
        else:
            alpha = min(1.0, self.c * self.eta(self.t - 1) ** 2)
            g_old, d_old = self.gradients(*self.old, index, evaluate)
            self.v, self.u = g + (1 - alpha) * (self.v - g_old), d + (1 - alpha) * (self.u - d_old)
        self.old = self.w, self.y
        eta = self.eta(self.t)
        self.w = self.w + eta * (self.w - self.lr * self.v - self.w)
        self.y = self.y + eta * (nearest(self.y + self.dual_lr * self.u, self.rho) - self.y)
        self.t += 1
