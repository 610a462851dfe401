"""Failures that no shipped rule knows."""

STEPS = [f"[rank0]: 2024-03-02 11:{m:02d}:10 INFO step {m}/500 loss: 2.{m:02d} tokens/s 1200" for m in range(1, 40)]

QUOTA = "[rank3]: 2024-03-02 11:40:02 ERROR zarrcache: lease 17 of volume vol-9 was revoked by the quota keeper"
FABRIC = "2024-03-02 11:40:01 gpu-17 kernel: qfab0: ERROR lane 3 retrain failed, hardware error, port 2 down"

NEW = "\n".join(
    [
        *STEPS,
        QUOTA,
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/opt/app/train.py", line 88, in main',
        "[rank3]:     batch = cache.lease(key)",
        "[rank3]: zarrcache.errors.LeaseGone: lease 17 is gone",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "",
    ]
)
"""A failure in a library of which nobody knows."""

BROKEN = "\n".join([*STEPS, FABRIC, "srun: error: gpu-17: task 3: Exited with exit code 1", ""])
"""A machine that breaks in a new way."""
