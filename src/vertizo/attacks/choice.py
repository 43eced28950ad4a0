"""Every attack by name."""

from __future__ import annotations

from vertizo.attacks.base import Attack
from vertizo.attacks.completion import ModelCompletion
from vertizo.attacks.designed import DesignedQuery
from vertizo.attacks.direct import DirectCurious, DirectEavesdropper
from vertizo.attacks.inversion import FeatureInversion
from vertizo.attacks.matching import GradientMatching
from vertizo.attacks.membership import MembershipInference
from vertizo.attacks.scoring import ReplyScoring

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
