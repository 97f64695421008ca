"""`gossamer chat`: talk to a model in the terminal."""

from typing import Annotated

import typer

from gossamer.cli import options as o


def chat(
    model: o.Model,
    kv: o.Cache = "dense",
    system: Annotated[str | None, typer.Option("--system", help="what the model is to be")] = None,
    max_tokens: o.MaxTokens = 512,
    temperature: o.Temperature = 0.7,
    top_p: o.TopP = 0.95,
    top_k: o.TopK = 0,
    seed: o.Seed = None,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    max_model_len: o.MaxModelLen = None,
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    tensor_parallel_size: o.TensorParallel = 1,
    random_weights: o.RandomWeights = False,
) -> None:
    """Chat with a model; /help lists what can be typed beside messages."""
    # torch._dynamo comes with the engine and takes seconds to import; `doctor` has no use for it.
    from gossamer.cli.conversation import converse  # noqa: PLC0415

    with o.one_line_errors():
        converse(
            model,
            system,
            sampling=o.given(
                max_tokens=max_tokens,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                seed=seed,
            ),
            engine=o.given(
                kv=kv,
                dtype=dtype,
                device=device,
                max_model_len=max_model_len,
                kv_memory=kv_memory,
                calibration=calibration,
                tensor_parallel_size=tensor_parallel_size,
                random_weights=random_weights,
            ),
        )
