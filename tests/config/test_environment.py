"""Keys in the environment: the same keys and lines as --set, which has the last word."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests.refusals import refused

from vertizo.config import schema
from vertizo.config.environment import settings_of
from vertizo.core.errors import ConfigError
from vertizo.network.serving.options import load_join, load_serve

NAME = "VERTIZO_SET__METHOD__NAME"


def test_a_variable_is_a_setting_that_yields_to_set() -> None:
    variables = {NAME: "vafl", "VERTIZO_SET__EPOCHS": "1e1", "PATH": "x", "VERTIZO_DATA": ""}
    found = settings_of(variables)
    assert found == ["epochs=1e1", "method.name=vafl"]
    config = schema.load(None, found)
    assert (config.method.name, config.epochs) == ("vafl", 10)
    config = schema.load(None, [*found, "method.name=dpzv"])
    assert (config.method.name, config.epochs) == ("dpzv", 10)
    assert pickle.loads(pickle.dumps(found[1])).name == NAME  # as it goes to other processes


def test_what_is_wrong_is_named_by_its_variable(tmp_path: Path) -> None:
    holder, member = tmp_path / "bank.yaml", tmp_path / "lab.yaml"
    holder.write_text("federation: {members: [lab], name: f, certificates: c, folder: f}\n")
    member.write_text("federation: {name: f, server: 'a:1', certificates: c, folder: f}\n")
    loads = {
        "run": lambda settings: schema.load(None, settings),
        "serve": lambda settings: load_serve(holder, settings),
        "join": lambda settings: load_join(member, settings),
    }
    rows = [
        ("run", "METHOD__NAM", "x", "unknown key 'method.nam'; did you mean 'name'"),
        ("run", "METHOD__NAME", "vafll", "method.name is 'vafll'.*vafl"),
        ("run", "EPOCHS", "many", "epochs is 'many'; it must be an integer"),
        ("run", "EPOCHS", "[", "'\\[' is not a YAML value"),
        ("run", "METHOD__SMOOTHING__X", "1", "method.smoothing is"),
        ("serve", "FEDERATION__LISTEM", "x:1", "unknown key 'federation.listem'.*listen"),
        ("serve", "FEDERATION__LISTEN", "x", "is no address"),
        ("join", "FEDERATION__PATIENCE", "-1", "federation.patience is -1"),
        ("join", "EPOCHS", "3", "unknown key 'epochs'"),
    ]
    for kind, key, value, words in rows:
        name = f"VERTIZO_SET__{key}"
        settings = settings_of({name: value})
        refused(name, ConfigError, loads[kind], settings, match=f"^{name}: .*{words}")
    wrong = settings_of({"VERTIZO_SET__EPOCHS": "many"})
    refused("--set", ConfigError, schema.load, None, [*wrong, "epochs=few"], match="^--set: epochs")


def test_names_that_are_no_keys_are_refused() -> None:
    for name in ("VERTIZO_SET__", "VERTIZO_SET__A____B", "VERTIZO_SET_EPOCHS", "VERTIZO_SET__A__"):
        refused(name, ConfigError, settings_of, {name: "1"}, match=f"^{name} names no key; write")
    twice = {"VERTIZO_SET__EPOCHS": "1", "VERTIZO_SET__Epochs": "2"}
    refused("twice", ConfigError, settings_of, twice, match="both set epochs")


def test_the_command_line_reads_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from vertizo.cli.main import main

    def line(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["vertizo", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    monkeypatch.setenv("VERTIZO_SET__METHOD__NAM", "x")
    for command in ("train", "compare --methods dpzv", "worth"):
        assert "VERTIZO_SET__METHOD__NAM: unknown key" in line(*command.split()), command
    words = "leave out CONFIG, --set and --out, VERTIZO_SET__METHOD__NAM"
    assert words in line("train", "--resume", str(tmp_path))
    monkeypatch.setenv("VERTIZO_SET__METHOD__NAM", "")
    monkeypatch.delenv("VERTIZO_SET__METHOD__NAM")
    monkeypatch.setenv("VERTIZO_SET__EPOCHS", "many")
    assert "--set: epochs is 'few'" in line("train", "--set", "epochs=few")
