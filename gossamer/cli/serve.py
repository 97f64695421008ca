"""`gossamer serve`: a model behind OpenAI's API, with a page to look at it."""

from pathlib import Path
from typing import Annotated

import typer

from gossamer.cli import options as o


def serve(
    model: o.Model,
    kv: o.Cache = "dense",
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="SPEC",
            help="a second cache, for requests with this `kv` and for the page's comparison",
            callback=o.specs_of,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8000,
    name: Annotated[
        str | None, typer.Option("--served-model-name", help="as requests call the model")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="GOSSAMER_API_KEY", show_envvar=True, help="that clients must send"),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option("--cors", metavar="ORIGIN", help="pages that may call the API; repeatable"),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="another name of a server on loopback; repeatable"),
    ] = None,
    max_queue: Annotated[int, typer.Option(help="sequences that may wait")] = 256,
    max_num_seqs: Annotated[int, typer.Option(help="sequences that run at a time")] = 256,
    max_output_tokens: Annotated[int | None, typer.Option(help="of one answer")] = None,
    max_body: Annotated[str, typer.Option(metavar="BYTES", help="of one request")] = "1MiB",
    timeout: Annotated[float, typer.Option(help="seconds for one request")] = 600.0,
    drain: Annotated[float, typer.Option(help="seconds to finish when told to stop")] = 30.0,
    profiles: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="allow the profiler; traces go here")
    ] = None,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="into the log")] = False,
    dtype: o.DType = "auto",
    device: o.Device = "auto",
    max_model_len: o.MaxModelLen = None,
    kv_memory: o.KVMemory = None,
    calibration: o.CalibrationFile = None,
    tensor_parallel_size: o.TensorParallel = 1,
    random_weights: o.RandomWeights = False,
    no_prefix_caching: Annotated[bool, typer.Option("--no-prefix-caching")] = False,
) -> None:
    """Serve a model: /v1/chat/completions, /v1/completions, /metrics, and a page at /."""
    # torch._dynamo comes with the engine and takes seconds to import; `doctor` has no use for it.
    from gossamer.cli import serving  # noqa: PLC0415

    with o.one_line_errors():
        serving.run(
            serving.Job(
                model=model,
                caches=[kv] if compare is None else [kv, compare],
                host=host,
                port=port,
                name=name,
                api_key=api_key,
                origins=tuple(cors or ()),
                hosts=tuple(allowed_host or ()),
                max_queue=max_queue,
                max_output_tokens=max_output_tokens,
                max_body=max_body,
                timeout=timeout,
                drain=drain,
                profiles=profiles,
                log_prompts=log_prompts,
                engine=o.given(
                    dtype=dtype,
                    device=device,
                    max_model_len=max_model_len,
                    kv_memory=kv_memory,
                    calibration=calibration,
                    tensor_parallel_size=tensor_parallel_size,
                    random_weights=random_weights,
                    max_num_seqs=max_num_seqs,
                    prefix_caching=not no_prefix_caching,
                ),
            )
        )
