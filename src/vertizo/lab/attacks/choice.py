"""Every attack by name."""

from __future__ import annotations

from vertizo.lab.attacks.base import Attack
from vertizo.lab.attacks.completion import ModelCompletion
from vertizo.lab.attacks.designed import DesignedQuery
from vertizo.lab.attacks.direct import DirectCurious, DirectEavesdropper
from vertizo.lab.attacks.inversion import FeatureInversion
from vertizo.lab.attacks.matching import GradientMatching
from vertizo.lab.attacks.membership import MembershipInference
from vertizo.lab.attacks.scoring import ReplyScoring

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
