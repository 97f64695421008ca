"""Compiles every variant of every Triton kernel to machine code, without a GPU; prints JSON lines.

A process of its own: kernels imported under TRITON_INTERPRET cannot be compiled.
"""

import importlib
import json
import pkgutil
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import gossamer.kernels

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def all_variants():
    for module in pkgutil.iter_modules(gossamer.kernels.__path__):
        loaded = importlib.import_module(f"gossamer.kernels.{module.name}")
        yield from getattr(loaded, "variants", list)()


def resources(cubin: bytes) -> dict[str, int]:
    """Registers, stack and local memory that the machine code asks for."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        report = subprocess.run(
            [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", report)}


def compile_variant(variant, capability: int, aligned: bool) -> dict:
    """Aligned pointers let Triton vectorise, which makes another program with other registers."""
    position = {name: (i,) for i, name in enumerate(variant.kernel.arg_names)}
    source = ASTSource(
        fn=variant.kernel,
        signature=variant.signature | dict.fromkeys(variant.constants, "constexpr"),
        constexprs={position[name]: value for name, value in variant.constants.items()},
        attrs={
            position[name]: [["tt.divisibility", 16]]
            for name, kind in variant.signature.items()
            if aligned and kind.startswith("*")
        },
    )
    options = {"num_warps": variant.num_warps}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return resources(compiled.asm["cubin"])


if __name__ == "__main__":
    for variant in all_variants():
        capabilities = [int(capability) for capability in sys.argv[1:]]
        # Pointers that are not aligned are rare: the first generation stands for the others.
        for capability, aligned in [(capabilities[0], False), *((c, True) for c in capabilities)]:
            found = compile_variant(variant, capability, aligned)
            point = {"variant": str(variant), "sm": capability, "aligned": aligned}
            print(json.dumps(point | found), flush=True)
