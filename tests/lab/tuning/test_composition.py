"""All trials together, against closed forms, published figures and the library itself."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from vertizo.core.errors import ConfigError
from vertizo.lab.tuning.composition import are_alike, calibrate, share_of, together
from vertizo.privacy.accounting import guarantee
from vertizo.privacy.accounting.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import epsilon_of, mu_of
from vertizo.privacy.accounting.grid import GridCorrection

DELTA = 1e-5


def gaussian(mu: float) -> Releases:
    """A run that is μ-GDP."""
    return Releases(clients=1, queries=1, reply=GaussianRelease(1.0, 2 / mu))


NO_REPLIES = gaussian(1e-6)


def test_trials_add_squares_of_mu() -> None:
    for mu in (0.1, 0.5, 1.0):
        for trials in (1, 2, 30):
            found = together([gaussian(mu)] * trials, DELTA)
            assert found == pytest.approx(epsilon_of(math.sqrt(trials) * mu, DELTA), rel=1e-6)
    found = together([gaussian(0.3), gaussian(0.4)], DELTA)
    assert found == pytest.approx(epsilon_of(0.5, DELTA), rel=1e-6)
    # docs/mathematics.md: μ = 1 gives 4.3771781 and μ = 2 gives 9.9972562 at δ = 1e-5.
    assert together([gaussian(0.5)] * 4, DELTA) == pytest.approx(4.3771781, rel=1e-5)
    assert together([gaussian(1.0)] * 4, DELTA) == pytest.approx(9.9972562, rel=1e-5)
    share = share_of(1.0, DELTA, 25)
    assert mu_of(share, DELTA) == pytest.approx(mu_of(1.0, DELTA) / 5, rel=1e-9)


@pytest.mark.full
def test_secret_steps_of_all_trials_are_composed() -> None:
    steps = SecretSteps(count=500, sampling=0.01, noise_multiplier=1.0)
    trial = replace(NO_REPLIES, secret=steps)
    assert together([trial] * 2, DELTA) == pytest.approx(2.8440, rel=2e-3)  # docs/mathematics.md
    both = replace(gaussian(0.5 / math.sqrt(2)), secret=steps)
    assert together([both] * 2, DELTA) == pytest.approx(3.6121, rel=2e-3)
    assert together([both] * 2, DELTA) > guarantee.epsilon(both, DELTA)


@pytest.mark.full
def test_secret_steps_of_several_kinds_are_composed() -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    kinds = [SecretSteps(300, 0.01, 1.0), SecretSteps(200, 0.03, 2.0)]
    accountant = PLDAccountant(
        dp_accounting.NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-4
    )
    for kind in kinds:
        step = dp_accounting.GaussianDpEvent(kind.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(kind.sampling, step), kind.count)
    found = together([replace(NO_REPLIES, secret=kind) for kind in kinds], DELTA)
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=5e-3)
    # A kind that is told in two halves is the same.
    nearly = [SecretSteps(500, 0.01, 1.0), SecretSteps(500, 0.01, 1.0 + 1e-9)]
    apart = together([replace(NO_REPLIES, secret=kind) for kind in nearly], DELTA)
    assert apart == pytest.approx(2.8440, rel=2e-3)


def test_no_bound_is_made_up_where_none_can_be_shown() -> None:
    steps = SecretSteps(count=1000, sampling=0.1, noise_multiplier=0.6)
    assert math.isinf(together([replace(NO_REPLIES, secret=steps)] * 20, DELTA))


def test_corrections_of_all_trials_are_added() -> None:
    coarse = GridCorrection(((700, 64),))
    trial = replace(gaussian(0.5), grid=coarse)
    found = together([trial] * 4, DELTA)
    assert found > together([gaussian(0.5)] * 4, DELTA)
    wanted = coarse.times(4).epsilon(lambda delta: epsilon_of(1.0, delta), DELTA)
    assert found == pytest.approx(wanted, rel=1e-6)


@pytest.mark.full
def test_calibrated_trials_stay_within_the_total_and_use_it() -> None:
    for trials, secret in itertools.product((1, 9), (False, True)):

        def planned(epsilon: float, trials: int = trials, secret: bool = secret) -> list[Releases]:
            noise = guarantee.calibrate(
                epsilon,
                DELTA,
                clients=2,
                queries=5,
                server_share=0.5 if secret else 0.0,
                secret_steps=40 if secret else 0,
                sampling=0.1 if secret else None,
            )
            steps = SecretSteps(40, 0.1, noise.server) if noise.server else None
            return [Releases(2, 5, GaussianRelease(1.0, noise.reply), secret=steps)] * trials

        each = calibrate(2.0, DELTA, trials, planned)
        assert 2.0 * 0.99 < together(planned(each), DELTA) <= 2.0, (trials, secret)
        assert each < 2.0 or trials == 1


def test_a_total_that_nothing_fits_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer trials"):
        calibrate(1.0, DELTA, 4, lambda epsilon: [gaussian(3.0)] * 4)


def test_trials_are_alike_up_to_rounding_alone() -> None:
    one, steps = gaussian(0.5), SecretSteps(10, 0.1, 1.0)
    assert are_alike(one, replace(one, reply=GaussianRelease(3.0, 12.0 * (1 + 1e-12))))
    assert not are_alike(replace(one, secret=steps), replace(one, secret=replace(steps, count=11)))
    for other in (
        gaussian(0.501),
        replace(one, secret=steps),
        replace(one, grid=GridCorrection(((1, 64),))),
    ):
        assert not are_alike(one, other), other
