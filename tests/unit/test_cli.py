"""The command line: help, dry runs, exit codes, and what reaches the driver."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from apprentice.config.load import load_config, to_yaml
from apprentice.config.schema import Config
from apprentice.errors import ApprenticeError, ConfigError, DataError, PlacementError
from driver.cli import main

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "configs" / "demo.yaml")
TINY = ROOT / "configs" / "tiny.yaml"
COMMANDS = [
    [],
    ["train"],
    ["evaluate"],
    ["evaluate", "compare"],
    ["evaluate", "judge"],
    ["evaluate", "scores"],
    ["data"],
    ["data", "info"],
    ["trajectories"],
    ["trajectories", "collect"],
    ["trajectories", "review"],
    ["trajectories", "show"],
    ["trajectories", "stats"],
    ["ask"],
    ["ask", "summary"],
    ["ask", "pareto"],
    ["ask", "sweep"],
    ["ask", "difficulty"],
    ["ask", "utility"],
    ["ask", "change"],
    ["ask", "queries"],
    ["ask", "leakage"],
    ["ask", "table"],
    ["ask", "judge"],
    ["ask", "baselines"],
    ["sandbox"],
    ["sandbox", "doctor"],
    ["config"],
    ["config", "list"],
    ["config", "show"],
    ["config", "explain"],
]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Config, dict[str, Any]]]:
    """Stands in for :mod:`driver.run`; collects what it is called with."""
    calls: list[tuple[str, Config, dict[str, Any]]] = []

    def record(name: str) -> Any:
        def run(config: Config, **rest: Any) -> int:
            calls.append((name, config, rest))
            return 0

        return run

    module = types.ModuleType("driver.run")
    for name in ("train", "evaluate", "collect"):
        setattr(module, name, record(name))
    monkeypatch.setitem(sys.modules, "driver.run", module)
    return calls


def _fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(config: Config, **rest: Any) -> int:
        raise error

    module = types.ModuleType("driver.run")
    module.train = train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "driver.run", module)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_a_help_that_says_what_it_does(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        main([*command, "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: apprentice")
    body = text.split("\n\n", 1)[1]
    assert body.strip() and "==SUPPRESS==" not in text


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c and c[-1] in ("train", "evaluate", "review", "collect")]
)
def test_commands_with_arguments_show_examples(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    assert f"apprentice {' '.join(command)} " in capsys.readouterr().out.split("example", 1)[1]


def test_train_passes_recipe_overrides_and_address(driver: list[Any]) -> None:
    assert main(["train", DEMO, "stage1.steps=5", "--address", "auto", "evaluation.k=2"]) == 0
    assert driver == [
        (
            "train",
            load_config(DEMO, ["stage1.steps=5", "evaluation.k=2"]),
            {"address": "auto", "resume": None},
        )
    ]


def test_only_a_private_cluster_is_kept_on_loopback_before_ray_is_imported(
    driver: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A finished test restores the variable, so that it is there for every later one.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "unset below")
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    assert main(["train", DEMO, "--address", "auto"]) == 0
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ
    assert main(["train", DEMO]) == 0
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_resume_takes_the_recipe_of_the_run(driver: list[Any], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((ROOT / "configs" / "tiny.yaml").read_text())
    assert main(["train", "--resume", str(tmp_path)]) == 0
    name, config, rest = driver[0]
    assert (name, config.name, rest) == ("train", "tiny", {"address": None, "resume": str(tmp_path)})
    assert main(["train", DEMO, "--resume", str(tmp_path)]) == 2
    assert main(["train", "--resume", str(tmp_path / "nothing")]) == 2


def test_evaluate_resumes_an_interrupted_evaluation_and_nothing_else(
    driver: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trains = tmp_path / "trains"
    folder = tmp_path / "tiny-evaluate"
    for path, words in ((trains, []), (folder, ["stages=[evaluate]"])):
        path.mkdir()
        (path / "config.yaml").write_text(to_yaml(load_config(TINY, words)))
    assert main(["evaluate", "--resume", str(folder)]) == 0
    ((name, config, rest),) = driver
    assert (name, config.stages) == ("train", ("evaluate",))
    assert rest == {"address": None, "resume": str(folder)}
    assert main(["evaluate", "--resume", str(trains)]) == 2
    assert f"apprentice train --resume {trains}" in capsys.readouterr().err
    for extra in ([DEMO], ["--modes", "base"], ["--checkpoint", str(folder)]):
        assert main(["evaluate", *extra, "--resume", str(folder)]) == 2
    assert main(["evaluate", "--resume", str(tmp_path / "nothing")]) == 2
    assert main(["evaluate"]) == 2
    assert len(driver) == 1


def test_evaluate_passes_checkpoint_and_modes(driver: list[Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    words = [
        "evaluate",
        DEMO,
        "--checkpoint",
        str(tmp_path),
        "--modes",
        "base,internalized",
        "evaluation.k=3",
    ]
    assert main(words) == 0
    _, config, rest = driver[0]
    assert (config.evaluation.modes, config.evaluation.k) == (("base", "internalized"), 3)
    assert rest == {"checkpoint": str(tmp_path), "modes": ("base", "internalized"), "address": None}


def test_collect_passes_checkpoint(driver: list[Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["trajectories", "collect", DEMO, "--checkpoint", str(tmp_path)]) == 0
    assert driver[0][0] == "collect" and driver[0][2]["checkpoint"] == str(tmp_path)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["train"], "name a recipe"),
        (["train", "nothing.yaml"], "no such recipe"),
        (["train", DEMO, "stage1.stepss=5"], "did you mean stage1.steps?"),
        (["evaluate", DEMO, "--modes", "magic"], "evaluation.modes"),
        (["evaluate", DEMO, "--checkpoint", "nowhere"], "no model is there"),
        (["evaluate", str(ROOT)], "folder without config.yaml"),
        (["trajectories", "stats", str(ROOT)], "not a run folder"),
        (["config", "explain", "qqq"], "no key contains"),
        (["config", "list", "nowhere"], "holds no recipe"),
    ],
)
def test_a_users_mistake_gives_one_message_and_exit_code_2(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str], driver: list[Any]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("apprentice: ") and part in captured.err
    assert "Traceback" not in captured.err
    assert driver == []


def test_an_unknown_option_is_refused_and_no_override(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["train", DEMO, "--adress=auto"])
    assert done.value.code == 2
    assert "--adress" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("the recipe is odd"), 2, "apprentice: the recipe is odd"),
        (DataError("the file is odd"), 2, "apprentice: DataError: the file is odd"),
        (PlacementError("no room"), 1, "apprentice: PlacementError: no room"),
        (KeyboardInterrupt(), 130, "apprentice: interrupted"),
    ],
)
def test_errors_of_a_run_become_exit_codes(
    error: BaseException,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _fail_with(error, monkeypatch)
    assert main(["train", DEMO]) == code
    assert capsys.readouterr().err.startswith(text)


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_with(PlacementError("no room"), monkeypatch)
    with pytest.raises(ApprenticeError, match="no room"):
        main(["train", DEMO, "--debug"])


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_with(ZeroDivisionError("a bug"), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        main(["train", DEMO])


def test_a_dry_run_prints_a_recipe_and_the_plan_and_starts_nothing(
    driver: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["train", DEMO, "--dry-run", "stage1.steps=3"]) == 0
    text = capsys.readouterr().out
    assert driver == []
    (tmp_path / "again.yaml").write_text(text)
    assert load_config(tmp_path / "again.yaml") == load_config(DEMO, ["stage1.steps=3"])
    for actor in ("learner", "rollout", "expert number-theory", "sandbox", "together"):
        assert f"\n# {actor} " in text


def test_a_dry_run_of_the_4b_recipe_takes_no_heavy_import_and_no_network() -> None:
    code = (
        "import sys, socket\n"
        "def no_network(*a, **k): raise AssertionError('a dry run opened a socket')\n"
        "socket.socket.connect = no_network\n"
        "from driver.cli import main\n"
        "code = main(['train', sys.argv[1], '--dry-run'])\n"
        "heavy = {'torch', 'ray', 'vllm', 'deepspeed', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    recipe = str(ROOT / "configs" / "rivet-4b.yaml")
    done = subprocess.run(
        [sys.executable, "-c", code, recipe], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "expert Qwen2.5-Coder-7B-Instruct" in done.stdout


def test_python_m_driver_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "driver", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.startswith("apprentice ")


def test_config_list_names_each_recipe_with_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "list", str(ROOT / "configs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [Path(line.split()[0]).name for line in lines] == [
        "ask-7b-code.yaml",
        "ask-7b-math.yaml",
        "ask-demo.yaml",
        "demo.yaml",
        "rivet-1.7b.yaml",
        "rivet-4b.yaml",
        "tiny.yaml",
    ]
    assert "RIVET-4B: " in lines[5]


def test_config_explain_tells_type_default_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "explain", "stage1.train_owners"]) == 0
    text = capsys.readouterr().out
    assert "stage1.train_owners\n    list of (controller | expert); default [controller, expert]" in text
    assert "ablation" in text


@pytest.fixture
def finished_run(tmp_path: Path) -> Path:
    from apprentice.run_folder import RunFolder
    from apprentice.trajectory import Owner, Status, TrajectoryBuilder

    run = RunFolder.create(
        load_config(ROOT / "configs" / "tiny.yaml"), path=tmp_path / "run", command=["test"]
    )
    written = []
    for i in range(2):
        builder = TrajectoryBuilder()
        builder.append([1, 2], Owner.PROMPT, "prompt")
        builder.append_sampled([3], [-0.5], 0)
        written.append(
            builder.build(
                trajectory_id=f"t{i}",
                problem_id="p",
                group_id="g",
                mode="collaborative",
                status=Status.COMPLETE,
                reward=1.0,
                verdict="correct",
            )
        )
    run.write_trajectories("stage2_candidates", 0, written)
    run.close()
    return run.path


def test_trajectories_are_listed_counted_and_reviewed(
    finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(finished_run)
    assert main(["trajectories", "show", run]) == 0
    assert "stage2_candidates  t0  complete  correct  3 tokens  0 calls" in capsys.readouterr().out
    assert main(["trajectories", "stats", run]) == 0
    assert "stage2_candidates: 2 trajectories" in capsys.readouterr().out
    assert main(["trajectories", "review", run, "--reject", "t1"]) == 0
    assert "0 approved, 1 rejected, 1 not reviewed" in capsys.readouterr().out
    assert main(["trajectories", "review", run, "--accept-all"]) == 0
    assert "1 approved, 1 rejected, 0 not reviewed" in capsys.readouterr().out
    assert main(["trajectories", "show", run, "t9"]) == 2
    assert "no trajectory 't9'" in capsys.readouterr().err
    assert main(["trajectories", "show", run, "--stage", "stage9"]) == 2
    assert "has no trajectories of 'stage9'" in capsys.readouterr().err


def test_sigterm_unwinds_like_an_exception(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, types\n"
        "def train(config, **rest):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        signal.pause()\n"
        "    finally:\n"
        "        print('closed', flush=True)\n"
        "sys.modules['driver.run'] = types.SimpleNamespace(train=train)\n"
        "from driver.cli import main\n"
        "sys.exit(main(['train', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, DEMO], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (143, "closed\n")
