"""The dimensions of a model that its KV cache depends on."""

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class KVShape:
    """The dimensions of a model's attention. Query heads are a multiple of KV heads."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{field.name} is {value!r}; must be an integer >= 1")
        if self.query_heads % self.kv_heads:
            raise ValueError(
                f"query_heads is {self.query_heads}; must be a multiple of {self.kv_heads} KV heads"
            )

    def part(self, heads: range) -> "KVShape":
        """Some KV heads with all their query heads."""
        group = self.query_heads // self.kv_heads
        return replace(self, query_heads=group * len(heads), kv_heads=len(heads))

    def __str__(self) -> str:
        heads = f"{self.query_heads} query and {self.kv_heads} KV heads of {self.head_dim}"
        return f"{self.layers} layers, {heads}"
