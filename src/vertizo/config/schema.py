"""The schema of an experiment's configuration: one frozen object; every key has a default.

A configuration comes from YAML, from ``key=value`` overrides, or from Python, and is complete once
it is built: written out again, it reruns the experiment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveInt, ValidationError, model_validator

from vertizo.config import architectures as models
from vertizo.config import former_names, method_defaults
from vertizo.config import tree as config_tree
from vertizo.config.error_lines import refusal, write_yaml
from vertizo.config.ineffective_keys import any_of, check_all_used
from vertizo.config.sections.client import ClientConfig
from vertizo.config.sections.early_stopping import EarlyStopping, check_early_stopping
from vertizo.config.sections.links import Links, check_activation
from vertizo.config.sections.optimizer import L2Config
from vertizo.config.sections.server import ServerConfig
from vertizo.core import digests
from vertizo.core.errors import ConfigError
from vertizo.core.names import PRIVATE, ControlName, Head, Naming, Timing
from vertizo.core.options import Options
from vertizo.data import weights
from vertizo.data.options import DataConfig
from vertizo.methods.choice import MethodConfig
from vertizo.methods.dpzv import Dpzv
from vertizo.privacy.options import ON_LABELS, PrivacyConfig
from vertizo.protocol.codecs.base import Codec
from vertizo.protocol.codecs.catalog import CODECS
from vertizo.protocol.codecs.feedback import MOST, loss_of
from vertizo.protocol.codecs.none import NoCompression

if TYPE_CHECKING:
    CodecChoice = Codec
else:
    CodecChoice = CODECS.choice("none")

CUTS = {"width": ("sides",), "height": ("halves", "rows")}
"""Side of an image → the splits whose parts follow each other along it."""


class CodecsConfig(Options):
    """How arrays become bytes, in both directions."""

    up: CodecChoice = NoCompression()
    """Codec of queries and uploads. Default: the method's own."""
    down: CodecChoice = NoCompression()
    """Codec of replies."""
    feedback: Literal["none", "up", "down", "both"] = "none"
    """Error feedback for each record. up: clients send each embedding as the difference from what
    the server already has of it. down: what a reply loses is added to the next one."""
    ids: Naming = "sent"
    """How queries name records. sent: by their IDs. implicit: the order of records follows from a
    public seed, and a query carries the number of its batch."""


class SimulationConfig(Links):
    """Timing of the rounds, and the clients' links."""

    timing: Timing = "asynchronous"
    """Whether each client goes at its own pace, or all in step. Default: the method's own way."""
    activation: tuple[Annotated[float, Field(gt=0, le=1)], ...] | None = None
    """q_m of each client, which add up to 1: in each of `rounds` rounds one client is active, drawn
    with these probabilities, as the papers' analyses have it. One that has made its epochs is drawn
    no more. Default: each client goes at its own pace."""
    table: Literal["zeros", "upload"] = "zeros"
    """What the embedding table holds before the first query. upload: the clients' first embeddings,
    whose bytes are counted."""


class ExperimentConfig(Options):
    """Everything that decides a run's numbers."""

    seed: int = Field(default=0, ge=0)
    """All randomness of a simulated run follows from it."""
    epochs: PositiveInt = 120
    """Passes of every client over its records. Default: as many as make about 3,000 batches, at
    least 5 and at most 120; 5 if replies carry noise."""
    rounds: PositiveInt | None = None
    """Stop after so many server steps, if the epochs are not over before."""
    batch_size: PositiveInt = 64
    """Records in a query. Default: 64; if replies carry noise, a twentieth of all records, at least
    64 and at most 2,000."""
    data: DataConfig = DataConfig()
    method: MethodConfig = Dpzv()
    client: ClientConfig = ClientConfig()
    server: ServerConfig = ServerConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    codecs: CodecsConfig = CodecsConfig()
    simulation: SimulationConfig = SimulationConfig()
    control: ControlName = "none"
    """Replace the clients' updates. frozen: no updates. random: random ones of the same length.
    label-free: no rounds either. Clients upload as many principal components of their features (or
    what client.pretrain makes of them) as their embeddings have numbers, once, and the raw head
    (server.final_head; else boosting for tables, and logistic) predicts; texts and filters keep
    client.model. It costs no privacy."""
    device: models.Device = "cpu"
    """Where a simulation is. cuda: all of it on the graphics card, as with `client.device` and
    `server.device`; nothing is copied back but at evaluations."""
    evaluate_every: PositiveInt | None = None
    """Server steps between two evaluations. Default: one epoch of all clients."""
    early_stopping: EarlyStopping = EarlyStopping()
    checkpoint_seconds: float | None = Field(default=None, ge=0)
    """Wall-clock seconds between two checkpoints. Default: 30, or more for large ones, so that
    writing takes a twentieth of the time at most."""
    threads: int = Field(default=1, gt=0, le=256)
    """CPU threads of one tensor operation; small models are fastest with one. Convolutions and
    other operations of PyTorch's round otherwise with another number, so that a run's last digits
    are of its number of threads."""

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, given: Any) -> Any:
        """Fill unset keys that others decide: timing, the server's update, the codec."""
        if not isinstance(given, Mapping):
            return given
        return method_defaults.filled(former_names.replaced(given))

    @model_validator(mode="after")
    def _fits(self) -> ExperimentConfig:
        method, name, update = self.method, self.method.name, self.server.update
        for model in self.client.every_model:
            if method.first_order_client and isinstance(model, models.FunctionConfig):
                raise ValueError(
                    f"method {name!r} back-propagates through client models but client.model "
                    f"{model.path!r} is a plain function; use method 'dpzv', 'cascaded' or "
                    "'zoo-vfl'"
                )
        if self.simulation.timing not in method.timings:
            raise ValueError(
                f"simulation.timing is {self.simulation.timing!r} but method {name!r} is "
                f"{' or '.join(method.timings)}; leave simulation.timing out"
            )
        if update not in method.server_updates:
            raise ValueError(
                f"server.update is {update!r} but method {name!r} trains its server by "
                f"{' or '.join(method.server_updates)}; leave server.update out, or use method "
                "'cascaded'"
            )
        if method.additive and self.client.optimizer.algorithm == "adam":
            raise ValueError(
                f"client.optimizer.algorithm is 'adam' but replies of method {name!r} are steps "
                "and no gradients; use 'sgd'"
            )
        if method.additive and (self.client.crop or self.client.flip):
            raise ValueError(
                f"client.{'crop' if self.client.crop else 'flip'} changes images from query to "
                f"query but method {name!r} asks about the same records' features again and again; "
                "leave it out, or use another method"
            )
        if not method.asks:
            self._uploads_once()
        self._image_parts_fit()
        if self.simulation.activation is not None:
            check_activation(self)
        self._noise_fits()
        self._padding_survives()
        if self.server.final_head != "private" and self.privacy.mechanism == "embedding-noise":
            raise ValueError(
                f"server.final_head is {self.server.final_head!r} but privacy.mechanism "
                "'embedding-noise' counts every upload of the training records, and one more is "
                "not in its figures; use 'private'"
            )
        self._codecs_fit()
        check_early_stopping(self)
        self._one_label()
        check_all_used(self)
        return self

    def _uploads_once(self) -> None:
        """Refuse a control or embedding noise for a method that uploads once and never asks."""
        name = self.method.name
        if self.control != "none":
            raise ValueError(
                f"control is {self.control!r} but clients of method {name!r} are not trained, so "
                "that there is nothing to replace; leave control out"
            )
        if self.privacy.mechanism == "embedding-noise":
            raise ValueError(
                f"privacy.mechanism is 'embedding-noise' but what clients of method {name!r} "
                "upload carries no noise; leave privacy out, or use another method"
            )

    def _noise_fits(self) -> None:
        privacy, update = self.privacy, self.server.update
        weights.check_public(self.data, privacy.mechanism)
        private = update in PRIVATE
        if private and privacy.mechanism != "gaussian":
            raise ValueError(
                f"server.update is {update!r} but privacy.mechanism is {privacy.mechanism!r}; "
                "its noise is calibrated with that of the replies: use 'gaussian'"
            )
        if not private:
            for key in ("server_share", "server_noise_std"):
                if getattr(privacy, key) is not None:
                    raise ValueError(
                        f"privacy.{key} is set but server.update {update!r} carries no noise; "
                        f"use {any_of(PRIVATE)}"
                    )
        if privacy.mechanism != "gaussian":
            return
        if privacy.accounting == "published":
            if private:
                raise ValueError(
                    "privacy.accounting is 'published', which cannot cover server.update "
                    f"{update!r}; use 'sgd' or 'none'"
                )
            return
        if privacy.epsilon is not None:
            if update not in (*PRIVATE, "none"):
                ways = [way for way in (*PRIVATE, "none") if way in self.method.server_updates]
                raise ValueError(
                    f"privacy.epsilon is {privacy.epsilon} but server.update {update!r} trains on "
                    "raw labels, so that no ε would hold; set server.update to "
                    f"{any_of(ways)}, or give privacy.noise_std instead"
                )
            if privacy.server_noise_std is not None:
                raise ValueError(
                    "privacy.epsilon and privacy.server_noise_std are both set; the noise is "
                    "calibrated to epsilon, or given as noise_std and server_noise_std"
                )
            self._narrow_learn(privacy.epsilon)
        elif private and (privacy.server_noise_std is None or privacy.server_share is not None):
            raise ValueError(
                f"server.update {update!r} with privacy.noise_std needs privacy.server_noise_std, "
                "and no privacy.server_share"
            )

    def _narrow_learn(self, epsilon: float) -> None:
        """Refuse narrow random embeddings under an ε too small for clients to learn at all."""
        name, update, learns = self.method.name, self.server.update, method_defaults.PER_RECORD
        random = self.client.pretrain == "none" and self.control == "none"
        if (
            random
            and update in PRIVATE
            and self.method.reply_is_per_record
            and epsilon < learns
            and method_defaults.is_narrow(self.client)
        ):
            raise ValueError(
                f"privacy.epsilon is {epsilon} and client.model.outputs at most "
                f"{method_defaults.NARROW}, but method {name!r} hides every record's own gradient "
                f"in noise, below which clients of a server with server.update {update!r} learn "
                "next to nothing; use method 'tangent' or 'dpzv', server.model 'sum' with "
                f"server.update 'none', or an epsilon of at least {learns:g}"
            )

    def _image_parts_fit(self) -> None:
        """Refuse a `resnet18-rest` that would put an image together otherwise than it was cut.

        Maps of other strips have as many numbers, so that nothing but the accuracy would show it.
        """
        model, data = self.server.model, self.data
        if not isinstance(model, models.ResnetRestConfig):
            return
        if data.sizes:
            raise ValueError(
                f"data.sizes is {data.sizes} but server.model 'resnet18-rest' puts equal parts "
                "together; leave data.sizes out"
            )
        fitting = CUTS.get(model.assemble)
        if fitting is not None and data.split not in fitting:
            given = "not set" if data.split is None else repr(data.split)
            raise ValueError(
                f"data.split is {given} but server.model.assemble {model.assemble!r} puts parts "
                f"together along the {model.assemble}; set data.split to "
                f"{' or '.join(map(repr, fitting))}, or assemble to what the split cuts"
            )

    def _one_label(self) -> None:
        """Refuse keys that need one class for each record, where ``data.label`` is a list."""
        if not self.data.has_several_labels:
            return
        head, mechanism = self.server.final_head, self.privacy.mechanism
        if head not in ("private", "refit", "auto"):
            raise ValueError(
                f"server.final_head is {head!r} but data.label is a list; a head for several "
                "labels is 'refit'"
            )
        if mechanism in ON_LABELS:
            raise ValueError(
                f"privacy.mechanism is {mechanism!r}, which exchanges one class for another, but "
                "data.label is a list; use 'gaussian'"
            )
        if self.method.name == "label-statistic":
            raise ValueError(
                "method is 'label-statistic', which is for classes, but data.label is a list; use "
                "'tangent'"
            )

    def _padding_survives(self) -> None:
        """Refuse what changes the zeros by which ``text-embeddings`` mark padded words."""
        if models.TextEmbeddingsConfig not in map(type, self.client.every_model):
            return
        if self.method.name == "czofo":
            what = "method 'czofo' perturbs"
        elif self.codecs.up.name != "none":
            what = f"codecs.up {self.codecs.up.name!r} rounds"
        elif self.privacy.mechanism == "embedding-noise":
            what = "privacy.mechanism 'embedding-noise' changes"
        else:
            return
        raise ValueError(
            f"client.model is 'text-embeddings', whose zeros say where a text ends, but "
            f"{what} them; use client.model 'text', or another method, codec or mechanism"
        )

    def _codecs_fit(self) -> None:
        method, name = self.method, self.method.name
        up, down, feedback = self.codecs.up, self.codecs.down, self.codecs.feedback
        if method.sends_tangents and (up.name != "none" or feedback in ("up", "both")):
            key, value = ("up", _called(up)) if up.name != "none" else ("feedback", repr(feedback))
            raise ValueError(
                f"codecs.{key} is {value} but method {name!r} sends derivatives, which are of "
                "another size than embeddings; use 'none'"
            )
        if up.name == "paired" and method.points == 1:
            raise ValueError(
                f"codecs.up is 'paired' but method {name!r} sends one embedding of each record, "
                "which has no pair; use 'uniform'"
            )
        if method.points > 1 and not up.keeps_differences:
            raise ValueError(
                f"codecs.up is {_called(up)} but method {name!r} sends embeddings that differ by "
                "little more than method.smoothing, which it would lose; use 'paired'"
            )
        if down.name == "paired":
            raise ValueError(
                f"codecs.down is 'paired' but replies of method {name!r} are not pairs of "
                "embeddings; use 'uniform'"
            )
        if method.reply_is_losses and not down.keeps_two_numbers:
            raise ValueError(
                f"codecs.down is {_called(down)} but method {name!r} answers with two losses that "
                "differ by little; set method.reply to 'difference', or use 'none' with float32, "
                "or 'uniform'"
            )
        if feedback in ("down", "both") and not method.reply_is_gradient:
            raise ValueError(
                f"codecs.feedback is {feedback!r} but replies of method {name!r} are not gradients "
                "of single records, which it could add up; use 'up' or 'none'"
            )

        for way, codec in (("up", up), ("down", down)):
            if feedback in (way, "both") and loss_of(codec, self.batch_size) > MOST:
                raise ValueError(
                    f"codecs.feedback is {feedback!r} but codecs.{way} {codec.name!r} loses "
                    f"{loss_of(codec, self.batch_size):.0%} of what it is given, so that errors "
                    "would add up; use more bits, 'sign' or 'top-k'"
                )

    @property
    def is_label_free(self) -> bool:
        """Whether clients use no label and ask nothing, by `control` or by the method."""
        return self.control == "label-free" or not self.method.asks

    @property
    def predicts_by(self) -> Head:
        """The head whose figures are the run's, and that predicts unless another is named."""
        return "raw" if self.is_label_free or self.server.final_head == "auto" else "private"

    def of_party(self, name: str) -> ExperimentConfig:
        """The configuration of one party: with its own model from ``client.models``, if any."""
        own = self.client.models.get(name)
        if own is None:
            return self
        client = self.client.model_copy(update={"model": own})
        return self.model_copy(update={"client": client})

    @property
    def digest(self) -> str:
        """A hash of every key and its value; noise is shared only by runs of equal digests.

        Newer keys are left out where unset, and changed defaults and names enter as they were
        before, so that older runs keep their digest and their noise.
        """
        later: dict[str, Any] = {}
        for section, key, unset in (
            ("early_stopping", "accuracy", self.early_stopping.accuracy is None),
            ("server", "device", self.server.device == "cpu"),
            ("server", "precision", self.server.precision == "tf32"),
            ("client", "precision", self.client.precision == "tf32"),
            ("client", "crop", not self.client.crop),
            ("client", "flip", not self.client.flip),
        ):
            if unset:
                later.setdefault(section, {})[key] = True
        if self.device == "cpu":
            later["device"] = True
        for section in ("client", "server"):
            if isinstance(getattr(self, section).optimizer.regularizer, L2Config):
                later.setdefault(section, {})["optimizer"] = {"regularizer": True}
        tree = self.model_dump(mode="json", exclude=later)
        if tree["checkpoint_seconds"] is None:
            tree["checkpoint_seconds"] = 30.0
        tree["data"]["without"] = tree["data"].pop("exclude_parties")
        if tree["codecs"]["ids"] == "implicit":
            tree["codecs"]["ids"] = "known"
        whole = json.dumps(tree, sort_keys=True)
        return blake2b(whole.encode(), digest_size=16).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a tree: another process imports the user's code anew by its paths."""
        return type(self).model_validate, (self.model_dump(mode="json", exclude_unset=True),)

    def to_yaml(self) -> str:
        """The complete configuration."""
        return write_yaml(self.model_dump(mode="json"))


def _called(codec: Codec) -> str:
    """A codec's name for error lines, with its number format unless that is float32."""
    dtype = codec.dtype if isinstance(codec, NoCompression) else "float32"
    return repr(codec.name) if dtype == "float32" else f"{codec.name!r} with {dtype}"


def load(
    path: Path | None, overrides: Sequence[str] = (), variant: str | None = None
) -> ExperimentConfig:
    """Load a configuration file, or the defaults, and apply ``key=value`` overrides.

    A section ``methods`` may hold what is different for one method: an entry's keys replace those
    of the file. The entry is that of ``variant``, or else that of the method that is chosen.
    Raises:
        ConfigError: one line that names the file, the key, its value and what would be right.
    """
    tree, source = read(path, overrides, variant)
    return parse(tree, source, overrides)


def read(
    path: Path | config_tree.Tree | None, overrides: Sequence[str] = (), variant: str | None = None
) -> tuple[config_tree.Tree, str]:
    """Read a file's tree and its name for errors; see `load` for entries and errors."""
    if isinstance(path, Path):
        digests.note_change(path)
    tree = config_tree.read(path, overrides, variant, ExperimentConfig())
    return tree, config_tree.called(path)


def parse(
    tree: Mapping[str, Any], source: str = "configuration", settings: Sequence[str] = ()
) -> ExperimentConfig:
    """Validate nested mappings as a configuration.

    ConfigError names ``source``, or the setting that set the wrong key.
    """
    if "federation" in tree:
        raise ConfigError(
            f"{source} has a section federation, of a real party; it is for `vertizo serve` or "
            "`vertizo join`"
        )
    try:
        return ExperimentConfig.model_validate(tree)
    except ValidationError as error:
        raise refusal(error, ExperimentConfig, source, settings) from None
