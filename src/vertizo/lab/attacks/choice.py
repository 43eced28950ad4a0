"""The table of all attacks by name."""

from __future__ import annotations

from vertizo.lab.attacks.base import Attack
from vertizo.lab.attacks.kinds.completion import ModelCompletion
from vertizo.lab.attacks.kinds.designed import DesignedQuery
from vertizo.lab.attacks.kinds.direct import DirectCurious, DirectEavesdropper
from vertizo.lab.attacks.kinds.inversion import FeatureInversion
from vertizo.lab.attacks.kinds.matching import GradientMatching
from vertizo.lab.attacks.kinds.membership import MembershipInference
from vertizo.lab.attacks.kinds.scoring import ReplyScoring

ATTACKS: dict[str, type[Attack]] = {
    attack.name: attack
    for attack in (
        DirectCurious,
        DirectEavesdropper,
        DesignedQuery,
        ReplyScoring,
        GradientMatching,
        ModelCompletion,
        FeatureInversion,
        MembershipInference,
    )
}
