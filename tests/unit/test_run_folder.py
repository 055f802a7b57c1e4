"""The run folder: nothing overwritten, nothing half-read, no secret written."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import apprentice
from apprentice.config.schema import Config
from apprentice.errors import ConfigError, DataError
from apprentice.provenance import REDACTED, Redactor, package_versions
from apprentice.results import ItemResult, read_all_results, read_results, write_results
from apprentice.run_folder import COMPLETE, RunFolder, file_slug

pytestmark = pytest.mark.unit


def make_config(**changes: object) -> Config:
    return Config.model_validate(
        {
            "name": "demo",
            "seed": 7,
            "controller": {"model": "some/model"},
            "experts": [{"name": "e", "backend": {"kind": "worked"}}],
            "data": {"train": {"name": "t", "source": "reasoning_gym"}},
            **changes,
        }
    )


def write_checkpoint(run: RunFolder, stage: str, step: int, *, complete: bool) -> Path:
    path = run.checkpoint_path(stage, step)
    (path / "data").mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x" * (100 + step))
    (path / "data" / "state.json").write_text("{}")
    if complete:
        run.mark_complete(stage, step, policy_version=step)
    return path


def test_create_writes_resolved_config_and_provenance(tmp_path: Path) -> None:
    run = RunFolder.create(make_config(), path=tmp_path / "demo", command=["apprentice", "train", "x.yaml"])
    again = RunFolder.open(tmp_path / "demo")
    assert again.config == make_config()
    assert "clip_epsilon: 0.2" in (run.path / "config.yaml").read_text()
    provenance = again.provenance
    assert provenance["seed"] == 7
    assert provenance["command"] == ["apprentice", "train", "x.yaml"]
    assert provenance["versions"]["apprentice"] == apprentice.__version__
    assert provenance["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert provenance["versions"]["transformers"] == metadata.version("transformers")
    assert set(provenance["git"]) == {"revision", "dirty"}
    assert provenance["cpus"] >= 1 and isinstance(provenance["gpus"], list)


def test_versions_are_read_without_importing_the_packages() -> None:
    code = (
        "import sys; from apprentice.provenance import package_versions as p; p();"
        "import apprentice.run_folder;"
        "bad = [m for m in ('torch', 'ray', 'vllm', 'deepspeed', 'transformers') if m in sys.modules];"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_version_of_an_absent_package_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("apprentice.provenance.metadata.version", absent)
    assert package_versions()["vllm"] is None


def test_a_taken_folder_gives_a_numbered_one_and_stays_untouched(tmp_path: Path) -> None:
    first = RunFolder.create(make_config(), path=tmp_path / "demo")
    (first.path / "report.html").write_text("old")
    second = RunFolder.create(make_config(), path=tmp_path / "demo")
    third = RunFolder.create(make_config(), path=tmp_path / "demo")
    assert [r.path.name for r in (first, second, third)] == ["demo", "demo-2", "demo-3"]
    assert (first.path / "report.html").read_text() == "old"
    with pytest.raises(ConfigError, match="already holds a run"):
        RunFolder.create(make_config(), path=tmp_path / "demo", on_existing="error")


def test_archive_moves_a_finished_run_but_never_a_live_one(tmp_path: Path) -> None:
    first = RunFolder.create(make_config(), path=tmp_path / "demo")
    (first.path / "report.html").write_text("old")
    with pytest.raises(ConfigError, match="still alive"):
        RunFolder.create(make_config(), path=tmp_path / "demo", on_existing="archive")
    first.close()
    second = RunFolder.create(make_config(), path=tmp_path / "demo", on_existing="archive")
    assert second.path == tmp_path / "demo"
    assert not (second.path / "report.html").exists()
    assert (tmp_path / "demo.old-1" / "report.html").read_text() == "old"


def test_one_process_resumes_while_others_only_read(tmp_path: Path) -> None:
    run = RunFolder.create(make_config(), path=tmp_path / "demo")
    RunFolder.open(run.path)
    with pytest.raises(ConfigError, match="still alive"):
        RunFolder.open(run.path, resume=True)
    run.close()
    RunFolder.open(run.path, resume=True).close()


def test_open_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.yaml"):
        RunFolder.open(tmp_path)
    (tmp_path / "config.yaml").write_text("name: x\nnonsense: 1\n")
    with pytest.raises(ConfigError, match="nonsense"):
        RunFolder.open(tmp_path)


def test_state_round_trips_and_survives_a_crash_while_writing(tmp_path: Path) -> None:
    run = RunFolder.create(make_config(), path=tmp_path / "demo")
    assert run.read_state() is None
    run.write_state("stage1", 3, policy_version=3)
    # What a crash leaves: a partial file beside the whole one.
    (run.path / "state.json.123.partial").write_text('{"stage": "sta')
    state = run.read_state()
    assert state is not None
    assert (state["stage"], state["step"], state["policy_version"]) == ("stage1", 3, 3)
    (run.path / "state.json").write_text('{"stage": "sta')
    with pytest.raises(DataError, match=r"state\.json is not JSON"):
        run.read_state()


def test_f05_half_written_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunFolder.create(make_config(), path=tmp_path / "demo")
    assert run.latest_complete("stage1") is None
    write_checkpoint(run, "stage1", 9, complete=True)
    write_checkpoint(run, "stage1", 10, complete=True)
    write_checkpoint(run, "stage1", 20, complete=False)
    with caplog.at_level(logging.WARNING):
        latest = run.latest_complete("stage1")
    assert latest is not None
    assert (latest.step, latest.path.name, latest.info) == (10, "step_10", {"policy_version": 10})
    assert "step_20" in caplog.text and f"{COMPLETE} is missing" in caplog.text
    # Marked, but its data state was lost afterwards: skipped as well.
    run.mark_complete("stage1", 20)
    (run.checkpoint_path("stage1", 20) / "data" / "state.json").unlink()
    assert run.latest_complete("stage1") == latest
    # Marked, but a file was cut.
    (run.checkpoint_path("stage1", 10) / "model.safetensors").write_bytes(b"x")
    caplog.clear()
    nine = run.latest_complete("stage1")
    assert nine is not None and nine.step == 9
    assert "has 1 bytes instead of 110" in caplog.text
    (run.checkpoint_path("stage1", 9) / COMPLETE).write_text('{"stage": ')
    assert run.latest_complete("stage1") is None


def test_an_empty_checkpoint_cannot_be_marked(tmp_path: Path) -> None:
    run = RunFolder.create(make_config(), path=tmp_path / "demo")
    with pytest.raises(DataError, match="empty"):
        run.mark_complete("stage1", 1)


def test_secrets_never_reach_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_ENDPOINT", "Smp!23")  # as in H21: short, low entropy; and no telling name
    monkeypatch.setenv("OTHER_API_KEY", "aAbBcCdDeF")
    backend = {
        "kind": "openai",
        "base_url": "http://user:hunter2secret@127.0.0.1:9/v1?apikey=aAbBcCdDeF",
        "model": "m",
        "api_key_env": "MY_ENDPOINT",
        "extra_body": {"api_key": "plainly-here", "note": "Smp!23", "top_k": 3},
    }
    config = make_config(experts=[{"name": "e", "backend": backend}])
    run = RunFolder.create(config, path=tmp_path / "demo", command=["x", "--key=Smp!23"])
    run.write_json("extra.json", {"header": "Bearer Smp!23"})
    written = "".join(p.read_text() for p in run.path.rglob("*") if p.is_file())
    for secret in ("Smp!23", "aAbBcCdDeF", "hunter2secret", "plainly-here"):
        assert secret not in written
    assert "MY_ENDPOINT" in written and "user:***@127.0.0.1" in written
    assert RunFolder.open(run.path).config.experts[0].backend.extra_body == {  # type: ignore[union-attr]
        "api_key": REDACTED,
        "note": REDACTED,
        "top_k": 3,
    }


def test_redactor_leaves_short_unnamed_values_and_plain_text_alone() -> None:
    redact = Redactor((), {"SAVE_TOKEN": "1", "GIT_TOKEN": "abcdefgh12"})
    assert redact({"steps": 1, "text": "1 + 1", "t": "x abcdefgh12 y"}) == {
        "steps": 1,
        "text": "1 + 1",
        "t": "x *** y",
    }
    assert redact("mail a@b.c see http://h/x") == "mail a@b.c see http://h/x"


@pytest.mark.parametrize(
    ("name", "slug"), [("math-ai/aime25", "math-ai_aime25"), ("../../etc", "_.._etc"), ("", "_"), ("..", "_")]
)
def test_a_name_becomes_one_harmless_file_name(name: str, slug: str) -> None:
    assert file_slug(name) == slug


def test_results_round_trip_and_say_where_a_row_is_torn(tmp_path: Path) -> None:
    run = RunFolder.create(make_config(), path=tmp_path / "demo")
    item = ItemResult(
        "p1",
        "gcd",
        "4",
        ("4", None, "5", "4"),
        ("correct", "no_answer", "wrong", "correct"),
        calls_by_tool={"think": 2},
        calls_by_expert={"e": 2},
        tokens={"controller": 90},
    )
    assert item.accuracy == 0.5
    path = run.results_path("internalized", "math-ai/aime25")
    write_results(path, [item])
    assert path.relative_to(run.path).as_posix() == "results/internalized/math-ai_aime25.jsonl"
    assert read_results(path) == [item]
    (filled,) = read_all_results(run.path / "results")
    assert (filled.mode, filled.set_name) == ("internalized", "math-ai_aime25")
    path.write_text(path.read_text() + json.dumps({"problem_id": "p2"})[:-5])
    with pytest.raises(DataError, match="line 2"):
        read_results(path)


def test_a_result_needs_a_verdict_per_answer() -> None:
    with pytest.raises(ValueError, match="2 answers, 1 verdicts"):
        ItemResult("p", "", "1", ("1", "2"), ("correct",))
