"""Building the protection of labels: releases, noise, the privacy plan, the server's update."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vertizo.config.schema import ExperimentConfig
from vertizo.core.names import PRIVATE
from vertizo.core.randomness import Stream
from vertizo.data.vertical import VerticalData
from vertizo.models.base import Model
from vertizo.party import private_updates as private
from vertizo.party.server_model import FirstOrder, NoUpdate, ServerUpdate, ZerothOrder
from vertizo.privacy.accounting import guarantee
from vertizo.privacy.accounting.events import GaussianRelease, Releases, SecretSteps
from vertizo.privacy.accounting.gaussian import mu_of, published_mu, published_noise_std
from vertizo.privacy.accounting.grid import GridCorrection
from vertizo.privacy.labels.private_labels import PrivateLabelPlan
from vertizo.privacy.ledger.base import Ledger, MemoryLedger
from vertizo.privacy.noise.discrete_gaussian import RandomBytes
from vertizo.privacy.noise.mechanisms import NoiseSource, SeededNoise
from vertizo.privacy.noise.secure import SecureNoise, grid_for
from vertizo.privacy.options import MECHANISMS, ON_LABELS
from vertizo.privacy.plan import ClippedGaussian, ClippedOnly, NoPrivacy, Plan
from vertizo.run.build import data_defaults, optimizers
from vertizo.run.build.labels import MARGIN, PrivateLabels, check_public
from vertizo.run.build.schedule import planned_rounds
from vertizo.zeroth_order.card_directions import directions_of


@dataclass(frozen=True)
class Charge:
    """A run's charge to a ledger that outlives it."""

    run: str
    """The run's name. Its noise depends on it: two runs of one seed share none."""
    open_ledger: Callable[[Releases], Ledger]
    """Opens the ledger for all that may depend on one record."""


def record_choice(config: ExperimentConfig) -> Stream:
    """The randomness that chooses which records train and which validate.

    It depends on the seed, except for runs that are charged to a ledger: these must give the same
    IDs to the same records.
    """
    return choice_of(config.seed if config.privacy.ledger is None else 0)


def choice_of(seed: int) -> Stream:
    """The randomness of `record_choice` for a public seed."""
    return Stream.from_seed(seed).child("validation")


@dataclass
class Protection:
    """The protection of one run's labels; ConfigError on first use if its ε cannot be had."""

    config: ExperimentConfig
    data: VerticalData
    model: Model
    """The server's model."""
    dims: Sequence[int]
    """d_h of every client."""
    stream: Stream
    """The server's randomness."""
    charge: Charge | None = None
    """What the run is charged to; None for a ledger of its own."""
    random_bytes: RandomBytes = os.urandom
    """The source of secure noise, secret samples and private labels."""
    label_file: Path | None = None
    """The file that keeps private labels beyond the run; None without one."""

    def __post_init__(self) -> None:
        config, parties = self.config, len(self.data.parties)
        update, steps = config.server.update, config.method.server_steps
        self._is_secret = update == "poisson-dp-sgd"
        # Numbers of one private update, and of those of a sum that is cut to a grid as a whole.
        parameters = self.model.parameters.numel()
        zeroth_order = update == "private-zeroth-order"
        self._server_numbers, self._cut_numbers = (1, 0) if zeroth_order else (parameters,) * 2
        synchronous = config.simulation.timing == "synchronous"
        self._steps_per_query = steps / parties if synchronous else float(steps)
        # Steps of the server's optimiser in the whole run: on secret samples T_s, else on the
        # batches of queries.
        rounds, secret = planned_rounds(config, self.data), config.server.secret
        self._secret_steps = secret.warm_up + rounds // secret.every
        self._update_steps = self._secret_steps if self._is_secret else rounds * steps
        self._per_query = config.method.releases_per_query or 1
        # Two runs that differ in anything share no noise: their difference would be free of it.
        secrets = self.stream.child("configuration", config.digest)
        self._secrets = secrets if self.charge is None else secrets.child("run", self.charge.run)

    @cached_property
    def labels(self) -> PrivateLabels | None:
        """The private labels that training reads in place of raw ones; None if it reads these."""
        config, data, kept = self.config, self.data, self.label_file
        if config.privacy.mechanism not in ON_LABELS:
            return None
        return PrivateLabels(config, data, self._secrets, self.random_bytes, kept)

    def plan(self) -> Plan:
        """Make the privacy plan, through which all replies pass."""
        if self.labels is not None:
            return PrivateLabelPlan(self.config.batch_size, self.labels.paid)
        config, privacy, releases = self.config, self.config.privacy, self.releases
        if privacy.mechanism not in MECHANISMS:
            own = MECHANISMS.find(privacy.mechanism, "privacy.mechanism")
            plan: Plan = own(privacy, config.batch_size, self._secrets.child("mechanism"))
            return plan
        if privacy.mechanism == "none" and privacy.clip is not None:
            return ClippedOnly(config.batch_size, privacy.clip)
        if releases is None or self._reply_noise is None:
            return NoPrivacy(config.batch_size)
        if self.charge is not None:
            ledger = self.charge.open_ledger(releases)
        else:
            steps = releases.secret.count if releases.secret else 0
            parties, records = len(self.data.parties), self.data.records
            ledger = MemoryLedger(records, parties, releases.share, steps)
        published = None
        if config.method.name == "dpzv":  # μ by its formula, for replies as it has them: one scalar
            reply, sampling = releases.reply, config.batch_size / self.data.records
            rounds = self._published_rounds
            published = published_mu(reply.noise_std, reply.clip_norm, rounds, sampling)
        return ClippedGaussian(
            releases,
            batch_size=config.batch_size,
            delta=privacy.delta,
            ledger=ledger,
            noise=self._reply_noise,
            published=published,
            by_formula=privacy.accounting == "published",
        )

    @cached_property
    def releases(self) -> Releases | None:
        """The releases that may depend on one record; None without noise on the replies."""
        config = self.config
        if self._reply_noise is None:
            return None
        server, secret = self._server_noise, None
        step = None if server is None else self._event(server, self._cut_numbers)
        if step is not None and self._is_secret:
            # Cutting to a grid may move a sum with the record and one without it alike.
            multiplier = step.noise_std / (step.clip_norm + step.slack)
            secret = SecretSteps(self._secret_steps, config.server.secret.sampling, multiplier)
            step = None
        return Releases(
            clients=len(self.data.parties),
            queries=config.epochs,
            reply=self._event(self._reply_noise),
            per_query=self._per_query,
            step=step,
            steps_per_query=self._steps_per_query,
            secret=secret,
            grid=self._grid(),
        )

    @property
    def noises(self) -> list[NoiseSource]:
        """The noise sources of the replies and of the server's private updates."""
        return [noise for noise in (self._reply_noise, self._server_noise) if noise is not None]

    def _event(self, noise: NoiseSource, numbers: int = 0) -> GaussianRelease:
        """A release with that noise; ``numbers`` is the length of a sum that a grid rounds."""
        slack = 0.0
        if isinstance(noise, SecureNoise) and numbers:
            slack = noise.sensitivity_onto(numbers) - noise.sensitivity
        return GaussianRelease(noise.clip_norm, noise.noise_std, slack)

    def _grid(self) -> GridCorrection | None:
        """The correction of the accounting for noise on a grid; None for seeded noise."""
        reply, server = self._reply_noise, self._server_noise
        if not isinstance(reply, SecureNoise):
            return None
        named = len(self.data.parties) * self.config.epochs
        per_record = max(self.config.method.reply_shape(1, dim)[-1] for dim in self.dims)
        correction = reply.correction(named * per_record)
        if isinstance(server, SecureNoise):
            steps = math.ceil(named * self._steps_per_query)
            steps = self._secret_steps if self._is_secret else steps
            correction += server.correction(steps * self._server_numbers)
        return correction

    @cached_property
    def _reply_noise(self) -> NoiseSource | None:
        config, multipliers = self.config, self._noise_multipliers
        if config.privacy.clip is None or multipliers is None:
            return None
        shapes = [config.method.reply_shape(config.batch_size, dim) for dim in self.dims]
        ahead = 2 * max(map(math.prod, shapes))
        return self._noise("noise", config.privacy.clip, multipliers[0], ahead)

    @cached_property
    def _server_noise(self) -> NoiseSource | None:
        multipliers, clip_norm = self._noise_multipliers, self.config.server.clip
        if multipliers is None or multipliers[1] is None:
            return None
        ahead = 2 * self._server_numbers
        return self._noise("server noise", clip_norm, multipliers[1], ahead, self._cut_numbers)

    def _noise(
        self, name: str, clip_norm: float, multiplier: float, ahead: int, numbers: int = 0
    ) -> NoiseSource:
        """Noise of ``multiplier`` times the clip; more if a sum of ``numbers`` is put on a grid."""
        noise_std = multiplier * clip_norm
        if self.config.privacy.noise == "seeded":
            stream = self._secrets.child(name)
            return SeededNoise(stream, clip_norm=clip_norm, noise_std=noise_std)
        if numbers:
            noise_std += multiplier * grid_for(clip_norm, noise_std) * math.sqrt(numbers)
        ahead, source = max(4096, ahead), self.random_bytes
        return SecureNoise(
            clip_norm=clip_norm, noise_std=noise_std, ahead=ahead, random_bytes=source
        )

    @cached_property
    def _noise_multipliers(self) -> tuple[float, float | None] | None:
        """σ/C of replies and of the server's private updates, configured or calibrated to ε."""
        config, privacy, data = self.config, self.config.privacy, self.data
        if privacy.mechanism != "gaussian":
            return None
        assert privacy.clip is not None, "a complete configuration has one"
        if privacy.noise_std is not None:
            server = privacy.server_noise_std
            return privacy.noise_std / privacy.clip, server and server / config.server.clip
        assert privacy.epsilon is not None
        check_public(privacy.epsilon, data)
        if privacy.accounting == "published":
            mu, sampling = mu_of(privacy.epsilon, privacy.delta), config.batch_size / data.records
            sigma = published_noise_std(privacy.clip, mu, self._published_rounds, sampling)
            return sigma / privacy.clip, None
        noised, secret = config.server.update in PRIVATE, self._is_secret
        share = privacy.server_share if privacy.server_share is not None else 0.5
        calibrated = guarantee.calibrate(
            privacy.epsilon * (1 if privacy.noise == "seeded" else 1 - MARGIN),
            privacy.delta,
            clients=len(data.parties),
            queries=config.epochs,
            per_query=self._per_query,
            server_share=share if noised else 0.0,
            steps_per_query=self._steps_per_query if noised and not secret else None,
            secret_steps=self._secret_steps if secret else 0,
            sampling=config.server.secret.sampling if secret else None,
        )
        return calibrated.reply, calibrated.server

    @property
    def _published_rounds(self) -> float:
        """T of DPZV's formula: all replies of all clients, ``M E D/B``."""
        per_record = self.config.epochs * self._per_query
        return len(self.data.parties) * per_record * self.data.records / self.config.batch_size

    @property
    def learning_rate(self) -> float:
        """η_0, the server's learning rate, as configured or by default."""
        options, noise, sgd = self.config.server, self._server_noise, self.config.server.optimizer
        if sgd.learning_rate is not None:
            return sgd.learning_rate
        if sgd.algorithm == "adam":
            return optimizers.ADAM_RATE
        sampled = options.secret.sampling * self.data.records
        records = sampled if self._is_secret else self.config.batch_size
        added = 0.0 if noise is None else noise.noise_std / records
        parameters = self.model.parameters.numel()
        steps = self._update_steps
        return data_defaults.server_rate(options.update, parameters, sgd.momentum, added, steps)

    def schedule(self) -> private.Schedule | None:
        """The schedule of steps on secret samples; None without such steps."""
        secret = self.config.server.secret
        if not self._is_secret:
            return None
        return private.Schedule(secret.every, secret.warm_up, self._secret_steps)

    def update(self) -> ServerUpdate:
        """Make the update that trains the server model; ConfigError if the model forbids it."""
        options, batch_size = self.config.server, self.config.batch_size
        parameters, forward = self.model.parameters, options.update == "forward-difference"
        if options.update == "none":
            return NoUpdate()
        descent = optimizers.made(
            options.optimizer,
            self.learning_rate,
            self._update_steps,
            parameters,
            smoothing=options.smoothing,
            forward=forward,
            differentiated=options.update in ("sgd", "private-sgd", "poisson-dp-sgd"),
            key="server.optimizer",
        )
        if options.update == "sgd":
            return FirstOrder(descent, batch_size)
        directions = directions_of(parameters, options.directions, self.stream.child("directions"))
        if options.update in ("zeroth-order", "forward-difference"):
            return ZerothOrder(descent, directions, options.smoothing, batch_size, forward=forward)
        noise = self._server_noise
        assert noise is not None
        if options.update == "private-zeroth-order":
            return private.PrivateZerothOrder(
                descent, noise, batch_size, directions, options.smoothing
            )
        if options.update == "private-sgd":
            return private.PrivateSgd(descent, noise, batch_size)
        sampling = options.secret.sampling
        sampler: private.SeededSampler | private.SystemSampler
        sampler = private.SystemSampler(self.random_bytes)
        if self.config.privacy.noise == "seeded":
            sampler = private.SeededSampler(self._secrets.child("secret samples"))
        capacity = guarantee.capacity(self.data.records, sampling)
        return private.SecretSgd(
            descent, noise, sampling=sampling, capacity=capacity, sampler=sampler
        )
