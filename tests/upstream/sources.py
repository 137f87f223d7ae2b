"""Toolkits whose own tests are in no wheel: which files of a checkout, what is left out, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Tuple


@dataclass(frozen=True)
class Source:
    """The tests of a toolkit in a checkout of it."""

    package: str  # the name of the distribution that is tested, which is installed, and not what the checkout has
    # The file of the checkout that has its version; empty for a toolkit that is on no registry: its package in the
    # checkout itself is tested, and the marks of the matrix tell its version.
    version: str
    parts: Tuple[str, ...]  # what is copied from the checkout to where the tests run
    files: Tuple[str, ...]  # patterns of the test files
    tag: str  # what to check out, in words
    # What the file of the version says in a checkout of another release, and that release.
    wrong: Dict[str, str] = field(default_factory=dict)
    # Where the tests look for the package's files in the checkout; the installed ones are there, by a link.
    place: str = ""


# Families with LayerDrop, or whose forward a patch of transformers touches.
FAMILIES = ("wav2vec2", "hubert", "wavlm", "whisper", "bart", "mbart", "opt", "speech_to_text")

SOURCES: Dict[str, Source] = {
    "speechbrain": Source(
        "speechbrain",
        "speechbrain/version.txt",
        ("tests", "conftest.py", "pytest.ini"),
        ("tests/unittests/test_*.py", "tests/integration/*/example_*.py"),
        "the tag vVERSION",
        # v1.1.0 is v1.0.4 as well, with the same sources as the wheel of 1.1.0 but for this file.
        {"1.0.4": "1.1.0"},
    ),
    "funasr": Source("funasr", "funasr/version.txt", ("tests",), ("tests/test_*.py",), "the tag vVERSION"),
    # The models that its tests build are those of the recipes.
    "wenet": Source("wenet", "", ("test", "examples"), ("test/wenet/**/test_*.py", "test/test_*.py"), "a tag"),
    "transformers": Source(
        "transformers",
        "src/transformers/__init__.py",
        # Not conftest.py: it asks torch for TF32 in a way that torch 2.13 refuses, and the tests do without it.
        ("tests", "utils", "pyproject.toml"),
        tuple(f"tests/models/{name}/test_modeling_{name}.py" for name in FAMILIES)
        + ("tests/trainer/test_trainer*.py", "tests/trainer/test_data_collator.py"),
        "the tag vVERSION, or the commit of main at which the branch of that release begins (VERSION.dev0)",
        # The version of main was not raised between 5.8.0 and 5.9.0, whose branch begins at 0b25f8c49c37.
        {"5.8.0.dev0": "5.9.0"},
        "src/transformers",
    ),
    # What is not in its wheel (:mod:`.accelerate_suite` has the scripts that are).
    "accelerate": Source(
        "accelerate",
        "src/accelerate/__init__.py",
        ("tests", "pyproject.toml"),
        ("tests/test_cpu.py", "tests/test_grad_sync.py", "tests/test_metrics.py", "tests/test_kwargs_handlers.py"),
        "the tag vVERSION, or the commit of main at which the branch of that release begins (VERSION.dev0)",
    ),
    "pytorch-lightning": Source(
        "pytorch-lightning",
        "src/version.info",
        ("tests/tests_pytorch", "pyproject.toml"),
        ("tests/tests_pytorch/strategies/test_ddp*.py", "tests/tests_pytorch/trainer/test_ddp_sigterm_handling.py"),
        "the tag VERSION, or the commit 908dc9e49 of main",
        # The version of main was not raised since: branches have the releases.
        {"2.6.2": "2.6.6"},
    ),
    # DDP over process groups in Python, which torch has not made; :mod:`.torch_suite` has what is in the wheel.
    "torch": Source(
        "torch",
        "version.txt",
        ("test/distributed/test_c10d_pypg.py", "test/distributed/test_c10d_common.py"),
        ("test/distributed/test_c10d_pypg.py",),
        "the tag vVERSION",
    ),
}

_REPOSITORY = "it tests the repository around the package: documents, pages, releases, examples, servers"
_BY_PATH = "it reads a file of the repository's package by its path, and not the package that is installed"
_DOWNLOADS = "it downloads a model"

# Why a file or a test is not run; by toolkit, a part of its name.
LEFT_OUT: Dict[str, Dict[str, str]] = {
    "speechbrain": {
        "test_hpopt": "it needs orion, which is no requirement of SpeechBrain",
        "test_RNN.py": "torch 2.13 refuses the size that it gives to torch.nn.RNN as a tensor",
        "test_rescorer.py": "it downloads language models",
    },
    "funasr": {
        **dict.fromkeys(
            (
                "test_canonical_qwenaudio_links",
                "test_check_funasr_website_static",
                "test_collect_growth_metrics",
                "test_collect_website_traffic",
                "test_community_projects_entries",
                "test_docs_funasr_install_commands",
                "test_fun_asr_nano_openai_response",
                "test_funasr_onnx_release",
                "test_generate_subtitle",
                "test_growth_plan_doc",
                "test_markdown_relative_links",
                "test_mcp_server_example",
                "test_openai_api_docker_validation",
                "test_pypi_metadata",
                "test_qwen3_asr_ws_example",
                "test_readme_deployment_hub_links",
                "test_realtime_ws",
                "test_release_",
                "test_sensevoice_continual_finetuning_docs",
                "test_sensevoice_tensorrt_builder",
                "test_text_normalization_punctuation",
                "test_vllm_model_source_docs",
                "test_websocket_file_finalization",
            ),
            _REPOSITORY,
        ),
        **dict.fromkeys(
            (
                "test_fun_asr_nano_autocast_device",
                "test_load_audio_bytes",
                "test_metrics_common_rapidfuzz",
                "test_postprocess_hotwords",
                "test_server_app_openai_segments",
            ),
            _BY_PATH,
        ),
        **dict.fromkeys(
            (
                "test_asr_inference_pipeline",
                "test_asr_vad_punc_inference_pipeline",
                "test_lm_pipeline",
                "test_punctuation_pipeline",
                "test_sv_inference_pipeline",
                "test_tp_pipeline",
                "test_vad_inference_pipeline",
            ),
            _DOWNLOADS,
        ),
        "test_fun_asr_nano_ctc_batch_fallback": "its stand-in for a model has no parameters, which torch 2.13 looks at",
    },
    "wenet": {
        "cli/test_model": _DOWNLOADS,
        "test_hugging_face_tokenizer": "it downloads a tokenizer",
        "test_paraformer_tokenizer": "its list of words (4 MiB) is in no checkout from which large files are left out",
    },
    "accelerate": {},
    "pytorch-lightning": {},
    "torch": {},
    "transformers": {
        "test_trainer_seq2seq": _DOWNLOADS,
        "test_trainer_tpu": "it needs a TPU",
        # Of models, not those of Trainer, which make their own.
        **dict.fromkeys(
            ("ModelIntegrationTest", "EnroIntegrationTest", "CC25IntegrationTest", "FastIntegrationTest"),
            "it loads weights from a hub",
        ),
    },
}
