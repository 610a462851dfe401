"""What throughput is counted in: each framework prints it in a unit of its own."""

from logdoctor.types import Compression

THROUGHPUT = {
    "filter/composer/progress": "batches/s",
    "filter/deepspeed/progress": "samples/s",
    "filter/fairseq/progress": "words/s",
    "filter/internevo/progress": "tokens/s per GPU",
    "filter/llamafactory/progress": "",
    "filter/megatron-deepspeed/iteration": "samples/s",
    "filter/megatron/iteration": "TFLOP/s per GPU",
    "filter/metaseq/progress": "words/s",
    "filter/nanotron/progress": "TFLOP/s per GPU",
    "filter/nemo/progress": "TFLOP/s per GPU",
    "filter/olmo/progress": "batches/s per GPU",
    "filter/torchtitan/progress": "TFLOP/s per GPU",
    "filter/tqdm/progress": "iterations/s",
    "filter/transformers/progress": "",
    "filter/verl/progress": "tokens/s per GPU",
}
"""The unit by the rule that reads it; "" for one whose lines do not tell."""


def throughput(of: Compression) -> str:
    """The unit of the throughput in a log; "" when it is not known, or rules that took lines read different ones."""
    found = {THROUGHPUT[rule] for rule in of.rules if rule in THROUGHPUT}
    return found.pop() if len(found) == 1 else ""
