"""Fix a model for a group that it fails: remedies compared fairly, and one verdict for all."""

from scdro.fix._compare import compare
from scdro.fix._examine import Examined as Examined
from scdro.fix._examine import LookSettings as LookSettings
from scdro.fix._examine import examine as examine
from scdro.fix._folds import FitProgress as FitProgress
from scdro.fix._folds import fit_weighted as fit_weighted
from scdro.fix._free_moves import MovedClassifier as MovedClassifier
from scdro.fix._free_moves import best_offsets as best_offsets
from scdro.fix._free_moves import best_temperature as best_temperature
from scdro.fix._free_moves import moved as moved
from scdro.fix._free_moves import robust_log_loss as robust_log_loss
from scdro.fix._groups import ConfirmedGroups as ConfirmedGroups
from scdro.fix._heads import SECOND_PENALTIES as SECOND_PENALTIES
from scdro.fix._heads import HeadRefit as HeadRefit
from scdro.fix._heads import HeadSettings as HeadSettings
from scdro.fix._heads import balanced_mean as balanced_mean
from scdro.fix._out_of_fold import out_of_fold as out_of_fold
from scdro.fix._verdict import BALANCED as BALANCED
from scdro.fix._verdict import GROUPS as GROUPS
from scdro.fix._verdict import PLAIN as PLAIN
from scdro.fix._verdict import SECOND as SECOND
from scdro.fix._verdict import THRESHOLD as THRESHOLD
from scdro.fix._verdict import Rung, Verdict
from scdro.fix._weights import balanced as balanced
from scdro.fix._weights import second_look_weights as second_look_weights
from scdro.fix._would_gain import Gain, Gains
from scdro.fix._would_gain import gains_of as gains_of

__all__ = ["Gain", "Gains", "Rung", "Verdict", "compare"]
