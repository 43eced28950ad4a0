"""Registries of what a configuration chooses by name: built in, of a package, or by import path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Generic, TypeVar, Union, cast

from pydantic import (
    GetJsonSchemaHandler,
    GetPydanticSchema,
    PlainSerializer,
    SerializationInfo,
    Tag,
    TypeAdapter,
    WrapValidator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from vertizo.core.errors import ConfigError
from vertizo.core.options import Chosen, Options, chosen_by
from vertizo.core.plugins.imports import load_object, object_at
from vertizo.core.text.suggestions import nearest

T = TypeVar("T")

FOREIGN: dict[str, Any] = {}
"""All objects found outside this package so far, by the name they were asked for by."""


def short(name: str) -> str:
    """The last part of an import path, for places where a name may not be a path."""
    return name.rpartition(":")[2]


class Registry(Mapping[str, T], Generic[T]):
    """Objects of one ``kind`` by name; as a mapping it holds those that are built in.

    `find` also takes what an installed package offers as an entry point of ``vertizo.<kind>s``, and
    import paths, ``package.module:name`` or ``file.py:name``. Nothing is imported before it is
    asked for: ``builtin`` may say ``module:name`` in place of the object itself.

    Classes from elsewhere must derive from ``base`` and have the members of ``protocol``.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, T | str],
        base: type | str | None = None,
        protocol: type | None = None,
    ) -> None:
        self.kind, self._builtin, self._base = kind, dict(builtin), base
        self._members = [name for name in vars(protocol or object) if not name.startswith("_")]
        self._foreign: dict[str, T] = {}
        self._adapters: dict[str, TypeAdapter[Any]] = {}

    def __getitem__(self, name: str) -> T:
        there = self._builtin[name]
        if isinstance(there, str):
            self._builtin[name] = there = object_at(there)
        return there

    def __contains__(self, name: object) -> bool:
        return name in self._builtin

    def __iter__(self) -> Iterator[str]:
        return iter(self._builtin)

    def __len__(self) -> int:
        return len(self._builtin)

    def offered(self) -> dict[str, EntryPoint]:
        """Entry points of installed packages by name, except names that are built in."""
        found = entry_points(group=f"vertizo.{self.kind}s")
        return {each.name: each for each in found if each.name not in self}

    def knows(self, name: str) -> bool:
        """Whether a name may be looked up; imports nothing."""
        return name in self or ":" in name or name in self.offered()

    def find(self, name: str, key: str) -> T:
        """The object of a name. It may import and run code, so the name must be the user's own.

        Raises:
            ConfigError: it names ``key``, the name and what would be right.
        """
        if name in self:
            return self[name]
        if name not in self._foreign:
            path = name
            if ":" not in name:
                offered = self.offered()
                if name not in offered:
                    raise ConfigError(f"{key} is {self.unknown(name)}")
                path = offered[name].value
            self._foreign[name] = self._checked(load_object(key, path), f"{key} is {name!r}")
            FOREIGN[name] = self._foreign[name]
        return self._foreign[name]

    def unknown(self, name: str) -> str:
        """The end of an error line about an unknown name: it, names like it, and all known ones."""
        known = [*self, *self.offered()]
        return f"{name!r}{nearest(name, known) or ';'} known are {', '.join(map(repr, known))}"

    def _checked(self, found: Any, words: str) -> T:
        base = object_at(self._base) if isinstance(self._base, str) else self._base
        if base is not None and not (isinstance(found, type) and issubclass(found, base)):
            raise ConfigError(
                f"{words}, which is no {base.__name__}; derive a class from "
                f"{base.__module__}.{base.__name__}"
            )
        fields = getattr(found, "model_fields", {})
        missing = {
            name for name in self._members if name not in fields and not hasattr(found, name)
        }
        if missing := missing | getattr(found, "__abstractmethods__", frozenset()):
            raise ConfigError(f"{words}, which does not define {', '.join(sorted(missing))}")
        if isinstance(found, type) and issubclass(found, Chosen) and fields["name"].default:
            raise ConfigError(f"{words}, which declares a name of its own; leave that field out")
        return cast(T, found)

    # A choice between options classes.

    def choice(self, default: str, only: tuple[str, ...] = ()) -> Any:
        """The type of a field whose key ``name`` chooses a class, by default ``default``; ``only``
        limits which of those built in may be chosen."""
        options = [Annotated[self[name], Tag(name)] for name in only or self]
        return Annotated[
            Union[tuple(options)],  # noqa: UP007 - made at run time
            chosen_by("name", default),
            WrapValidator(self._chosen),
            PlainSerializer(_written),
            GetPydanticSchema(get_pydantic_json_schema=self._with_external),
        ]

    def _with_external(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON schema of a choice, which also accepts names from outside, with any keys."""
        names = [{"pattern": ":"}, {"enum": list(self.offered())}]
        properties = {"name": {"type": "string", "anyOf": names}}
        elsewhere = {"type": "object", "required": ["name"], "properties": properties}
        known = handler(core)
        return {**known, "oneOf": [*known["oneOf"], elsewhere]}

    def _chosen(self, value: Any, builtin: Callable[[Any], Any]) -> Any:
        """Validate a value by its class from outside; ``builtin`` validates all others."""
        name = value.get("name") if isinstance(value, Mapping) else getattr(value, "name", None)
        if not isinstance(name, str) or name in self:
            return builtin(value)
        if not self.knows(name) and not self.offered():
            return builtin(value)  # which says what there is
        if isinstance(value, Options):
            self._checked(type(value), f"name is {name!r}")
            return value
        if name not in self._adapters:
            try:
                option: Any = self.find(name, "name")
            except ConfigError as error:
                raise PydanticCustomError("not_found", "{line}", {"line": str(error)}) from None
            # Of two, so that errors have the option's name in their place as those of others do.
            union = Union[Annotated[option, Tag(name)], Annotated[None, Tag("")]]  # noqa: UP007
            self._adapters[name] = TypeAdapter(Annotated[union, chosen_by("name", name)])
        return self._adapters[name].validate_python(value)


def _written(option: Options, info: SerializationInfo) -> dict[str, Any]:
    return option.model_dump(mode=info.mode)
