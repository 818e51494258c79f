"""The table of methods: what each needs, and that a name is the class with its settings."""

import pytest
import torch

import scdro
from convex import DECAY, RHO, SETTINGS, Training, new_model
from logistic import flat
from reproduction.baselines import REGISTRY


def test_what_a_method_needs_is_named():
    with pytest.raises(scdro.errors.HyperparameterError, match=r"n, all_losses.*PGSMD2"):
        REGISTRY["PGSMD2"].build(new_model().parameters(), {"rho": 0.1}, lr=0.1)


@pytest.mark.parametrize("name", ["RSCDRO", "RASCDRO"])
def test_printed_stages_are_those_of_the_method_with_the_papers_temperature(name):
    """The same weights, bit for bit, as the class itself with stages and temperature by hand."""
    settings = SETTINGS[f"{name}-printed"]
    named = Training(f"{name}-printed", **settings)
    by_hand = Training(f"{name}-printed", **settings)
    stages = scdro.optim.decay_stages(settings["lr"], settings["beta"], [400, 600])
    by_hand.opt = getattr(scdro.optim, name)(
        by_hand.model.parameters(),
        stages,
        RHO,
        temperature=scdro.printed.PrintedTemperature(settings["lam"]),
        weight_decay=DECAY,
        **({"module": by_hand.model} if name == "RASCDRO" else {}),
    )
    for t in (named, by_hand):
        for _ in range(410):
            t.step()
    assert named.opt.stage == by_hand.opt.stage == 1
    assert named.opt.param_groups[0]["lr"] == pytest.approx(0.1 * settings["lr"])
    assert (flat(named.model) == flat(by_hand.model)).all()


def test_class_balanced_training_balances_classes_by_default():
    """At .999 two such classes got nearly the same weight: it was plain training."""
    counts = torch.tensor([6273, 19776])
    losses = REGISTRY["ClassBalanced"].per_sample(counts)(torch.zeros(2, 2), torch.tensor([0, 1]))
    torch.testing.assert_close(counts * losses, (counts * losses).mean().expand(2))
