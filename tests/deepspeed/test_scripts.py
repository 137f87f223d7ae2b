"""DeepSpeed as FunASR's ``train_ds.py`` and WeNet's ``train.py`` run it, from their command lines, on two ranks."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from tests.deepspeed.launch import ENVIRON
from tests.support import ranks
from tests.wenet import trees

pytestmark = [pytest.mark.sampled(inside=False, cells=True), pytest.mark.patches("deepspeed.layerdrop")]
HERE = {"funasr": find_spec("funasr") is not None, "wenet": "main" in trees.available()}
# A gradient that is rounding alone becomes no step of its own.
ADAM = {"lr": 0.001, "eps": 1e-3}
TOOLKITS = [
    pytest.param(
        name, marks=pytest.mark.skipif(not here, reason=f"{name} is not here: python -m tests.cells deepspeed")
    )
    for name, here in HERE.items()
]


def settings(folder: Path, stage: int, **more: Any) -> Path:
    """DeepSpeed's, with a torch optimizer that it has not tested."""
    whole = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "steps_per_print": 1,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage},
    }
    file = folder / "deepspeed.json"
    file.write_text(json.dumps({**whole, **more}))
    return file


def of_funasr(folder: Path, stage: int, count: int) -> Tuple[List[str], Dict[str, str]]:
    from tests.funasr import launch, recipes

    (folder / "data").mkdir()
    config = recipes.write(folder / "data", "Conformer", encoder_conf={"stochastic_depth_rate": 0.5}, optim_conf=ADAM)
    words = [str(launch.package() / "bin" / "train_ds.py"), f"--config-path={config.parent}"]
    words += [f"--config-name={config.name}", f"++output_dir={folder / 'exp'}", f"hydra.run.dir={folder}"]
    words += ["++train_conf.use_deepspeed=true", f"++train_conf.deepspeed_config={settings(folder, stage)}"]
    return [*words, "++backend=gloo", "++device=cpu"], ranks.environment()


def of_wenet(folder: Path, stage: int, count: int) -> Tuple[List[str], Dict[str, str]]:
    from tests.wenet import recipe

    tree = trees.available()["main"]
    encoder = {"num_blocks": 4, "stochastic_depth_rate": 0.5}
    recipe.write(folder, count, encoder="branchformer", encoder_conf=encoder, optim_conf=ADAM, grad_clip=0.0)
    more = ["--train_engine", "deepspeed", "--deepspeed_config", str(settings(folder, stage))]
    more += ["--deepspeed.save_states", "model+optimizer"]
    return recipe.command(tree, folder, *more)[1:], recipe.environ(tree)


def run(
    toolkit: str, folder: Path, stage: int, count: int = 16, **environ: str
) -> Tuple[int, str, List[Dict[str, Any]]]:
    """Exit code, what was printed, and the records of the ranks. ``count`` are WeNet's utterances, four a step."""
    words, whole = {"funasr": of_funasr, "wenet": of_wenet}[toolkit](folder, stage, count)
    whole = {**whole, **ENVIRON, "HYDRA_FULL_ERROR": "1", **environ}
    command = [*ranks.elastic(2), "-m", "tests.deepspeed.beside", str(folder), toolkit, *words]
    code, printed = ranks.run(command, whole, folder, 200)
    return code, printed, [json.loads(file.read_text()) for file in sorted(folder.glob("?.json"))]


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("toolkit", TOOLKITS)
def test_ranks_skip_alike_and_train_what_is_trained_by_hand(toolkit: str, stage: int, tmp_path: Path) -> None:
    code, printed, records = run(toolkit, tmp_path, stage, DDPFIX="1")
    assert code == 0, printed[-6000:]
    one, other = records
    assert one["ran"] == other["ran"] and len({tuple(ran) for ran in one["ran"]}) > 1, one["ran"]
    assert one["decided"] is not None
    for record in records:
        assert len(record["apart"]) == len(record["ran"]) > 3 and max(record["apart"]) == 0.0


@pytest.mark.parametrize("toolkit", TOOLKITS)
def test_unpatched_ranks_send_what_does_not_belong_together(toolkit: str, tmp_path: Path) -> None:
    code, printed, _ = run(toolkit, tmp_path, 2)
    assert code != 0 and "Received data size doesn't match expected size" in printed, printed[-6000:]


def test_a_step_without_a_layer_is_an_error_under_the_third_stage(tmp_path: Path) -> None:
    """Of FunASR's script as well, but its CTC fails before: ZeRO 3 wraps its output, also unpatched at a rate of 0."""
    if not HERE["wenet"]:
        pytest.skip("wenet is not here: python -m tests.cells deepspeed")
    code, printed, _ = run("wenet", tmp_path, 3, DDPFIX="1")
    assert code not in (0, ranks.OVERDUE) and "ZeRO 3" in printed, printed[-6000:]


def test_ranks_of_wenet_stop_together(tmp_path: Path) -> None:
    """One has four batches and the other three; the fix is wenet.uneven, which WeNet's own cells stand for."""
    if not HERE["wenet"]:
        pytest.skip("wenet is not here: python -m tests.cells deepspeed")
    code, printed, records = run("wenet", tmp_path, 2, 13, DDPFIX="1")
    assert code == 0, printed[-6000:]
    assert [len(record["ran"]) for record in records] == [3, 3] and records[0]["ran"] == records[1]["ran"]
    assert all(max(record["apart"]) == 0.0 for record in records)
    assert "ranks stopped after 3 steps, when the first one had no more batches; 1 batches of 1 ranks" in printed
