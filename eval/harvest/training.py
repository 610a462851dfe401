"""Messages of the software above PyTorch: trainers, Ray, data and storage clients, experiment trackers."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import regex

from eval.harvest.messages import Message, Reader
from eval.harvest.python_messages import exceptions, messages
from eval.harvest.trees import files

_OWN = (
    r"^(?!.*(?:^|/)(?:tests?|testing|test_utils|examples?|docs?|benchmarks?|ci|scripts|cookbook"
    r"|release)/)(?!.*(?:^|/)(?:test_|conftest|setup\.py))"
)


_PREFIXES = {
    "comet-ml": "COMET {level}: ",
    "deepspeed": "[2026-03-02 11:08:47,123] [{level}] [engine.py:{line}:step] ",
    "mlflow": "2026/03/02 11:08:47 {level} mlflow.tracking.client: ",
    "ray": "2026-03-02 11:08:47,123\t{level} {file}:{line} -- ",
    "transformers": "[{level}|{file}:{line}] 2026-03-02 11:08:47,123 >> ",
    "wandb": "wandb: {level} ",
}
"""Prefixes of log lines, by program with a form of its own."""


def python(source: str, wanted: str, tree: Path) -> Iterator[Message]:
    """Yield the error messages of Python files whose path matches `wanted`."""
    found = list(files(tree, _OWN + r"(?:.*/)?" + wanted + r".*\.py$"))
    modules: dict[str, str] = {}
    for file in found:
        for name, _ in exceptions(file.text):
            modules.setdefault(name, _module(file.path) + ".")
    for file in found:
        prefix = _PREFIXES.get(source, "").replace("{file}", Path(file.path).name)
        for one in messages(file.text):
            if one.loud and (text := one.printed(prefix, modules).strip()):
                yield Message(source, f"{file.path}:{one.line}", text)


def _module(path: str) -> str:
    """Return the module of a file, by its path."""
    name = regex.sub(r"(?:/__init__)?\.py$", "", path)
    return regex.sub(r"^(?:.*/)?(?:src|python|lib)/", "", name).replace("/", ".")


_TREES = {
    "accelerate": r"accelerate/",
    "aiobotocore, s3fs": r"s3fs/",
    "apex": r"apex/",
    "aws-cli": r"awscli/customizations/s3/",
    "azure-core": r"azure/core/",
    "azure-storage-blob": r"azure/storage/",
    "boto3": r"boto3/",
    "botocore": r"botocore/",
    "colossalai": r"colossalai/",
    "comet-ml": r"comet_ml/(?!optimizer|query|cli|scripts)",
    "composer": r"composer/",
    "datasets": r"datasets/",
    "deepspeed": r"deepspeed/(?!inference|model_implementations|module_inject|profiling|autotuning)",
    "fairseq": r"fairseq/(?!models|modules)",
    "ffcv": r"ffcv/",
    "flash-attention": r"flash_attn/",
    "fsspec": r"fsspec/",
    "gcsfs": r"gcsfs/",
    "google-api-core": r"google/api_core/",
    "google-cloud-storage": r"google/cloud/storage/",
    "google-resumable-media": r"google/resumable_media/|google/_async",
    "gpt-neox": r"megatron/",
    "horovod": r"horovod/",
    "huggingface_hub": (
        r"huggingface_hub/(?!inference|cli|commands|_sandbox|_dduf|serialization/_dduf|_webhooks"
        r"|_jobs|_space)"
    ),
    "jax": r"jax/(?:_src/|distributed|experimental/)(?!pallas|mosaic|jax2tf)",
    "keras": r"keras/src/(?:trainers|saving|callbacks|backend|distribution|utils)",
    "lightning": r"lightning(?:_fabric|/pytorch|/fabric)/|lightning/",
    "llamafactory": r"llamafactory/",
    "megatron": r"megatron/(?!core/inference)",
    "metaseq": r"metaseq/",
    "mlflow": (
        r"mlflow/(?:tracking/(?!registry)|utils/(?:rest_utils|request_utils|credentials"
        r"|databricks_utils|file_utils|validation)|store/(?:artifact|tracking/rest_store)"
        r"|exceptions)"
    ),
    "nemo": r"nemo/(?:core|utils|lightning|collections/(?:common|nlp|llm))",
    "olmo": r"olmo/",
    "openrlhf": r"openrlhf/",
    "orbax": r"orbax/checkpoint/",
    "oss2": r"oss2/",
    "ray": (
        r"ray/(?:_private|exceptions|_common|actor|remote_function|runtime_env|util/(?:placement"
        r"|sgd|client|collective)|train|tune|data/_internal|data/exceptions|core)(?!.*(?:thirdparty"
        r"|aws|cli))"
    ),
    "s3transfer": r"s3transfer/",
    "safetensors": r"safetensors/",
    "slime": r"slime/",
    "streaming": r"streaming/",
    "torch.distributed, Python": r"torch/distributed/(?:checkpoint|fsdp|_|algorithms|device_mesh|optim|pipe|tensor)",
    "torch.data": r"torch/(?:utils/data|utils/cpp_extension|serialization|multiprocessing|storage|amp|nn/parallel)",
    "torch.compile": (
        r"torch/(?:_dynamo/exc|_inductor/(?:exc|codecache|async_compile|compile_worker|runtime"
        r"|cpp_builder))"
    ),
    "torchtitan": r"torchtitan/",
    "torchtune": r"torchtune/",
    "transformer-engine": r"transformer_engine/(?:pytorch|common)",
    "transformers": r"transformers/(?!models/|pipelines/|commands/)",
    "trl": r"trl/",
    "verl": r"verl/",
    "wandb": r"wandb/(?!vendor|proto|sdk/launch|cli|automations|apis/(?:public|automations)|sandbox|agents)",
    "webdataset": r"webdataset/",
}
"""Which Python files of a program's tree are read."""

_NATIVE = regex.compile(rb"[\x20-\x7e]{24,600}")
_TROUBLE = regex.compile(
    r"(?i)fail|error|died|dead|killed|crash|timed? ?out|lost|unreachable|unable|cannot|can't|could not|invalid|exceed"
    r"|out of|terminat|exit|disconnect|missing|not found|refus|unexpected|abort"
)
_OF_RAY = regex.compile(r"(?i)\b(?:ray|raylet|gcs|plasma|object store|actor|worker|placement group|runtime env|spill)")
_CODE = regex.compile(
    r"::|_Z[A-Z0-9]|[{}\\]|%[sdl(]|\w\(\w|^[\W\d]|->|[Cc]heck failed|\b[a-z]+_[a-z]+\b|\b[a-z]+[A-Z]|gRPC|Redis"
)


def native(source: str, path: Path) -> Iterator[Message]:
    """Yield sentences of trouble among the literals of Ray's programs, without inserted values. `path` is one program,
    or a folder."""
    for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
        for match in _NATIVE.finditer(file.read_bytes()):
            text = match.group().decode("ascii").strip()
            if (
                text[:1].isupper()
                and text.count(" ") >= 4
                and _TROUBLE.search(text)
                and _OF_RAY.search(text)
                and not _CODE.search(text)
            ):
                yield Message(source, f"{file.name}:{match.start():#x}", text)


SOURCES: dict[str, Reader] = {
    **{name: partial(python, name, wanted) for name, wanted in _TREES.items()},
    "ray, native": partial(native, "ray, native"),
}
"""How each program's messages are read from its tree."""
