"""A cache of transformers that keeps K and V compressed, in pages."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from gossamer.integrations.transformers.bases import needed_calibration
from gossamer.integrations.transformers.handed import Handed
from gossamer.integrations.transformers.identity import Owner
from gossamer.integrations.transformers.padding import new_tokens
from gossamer.integrations.transformers.ring import Ring
from gossamer.integrations.transformers.rows import Rows, RowsStep
from gossamer.integrations.transformers.support import check_dtype, supported_shape
from gossamer.kv import Calibration, KVConfig, PagedCache
from gossamer.kv.announce import measure_and_log
from gossamer.kv.bases import turn
from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.extras import import_extra
from gossamer.ops.kv_block import BLOCK_TOKENS

Cache: Any = import_extra("transformers").Cache


class SparseCache(Cache):  # type: ignore[misc]
    """Past keys and values for `model.generate(past_key_values=...)`, compressed as `kv` says.

    config: of the model. kv: a spec like "sparse:k=64,v=40", see gossamer.kv.config, or a KVConfig.
    calibration: a Calibration or its file, for bases and weighted ranks. rollback: how many tokens
    `crop` can always take back (assisted generation needs it); at least those of the block that the
    last token is in, and all of them for "dense".

    The model must use attn_implementation="gossamer", and rows are padded on the left. Memory is
    allocated with the first tokens, and grows with them. With the first compressed block, the log
    says how the cache decodes here, and warns of one that is slower than dense. A cache belongs to
    the model that used it first. Raises TypeError or ValueError for a model, a spec or a
    calibration that does not fit.
    """

    def __init__(
        self,
        config: Any,
        kv: str | KVConfig = "dense",
        *,
        calibration: Calibration | str | PathLike[str] | None = None,
        rollback: int = 0,
    ) -> None:
        from gossamer.integrations.transformers.attention import register_attention  # noqa: PLC0415

        register_attention()
        self.shape, self.kv = supported_shape(config), kv
        if type(rollback) is not int or rollback < 0:
            raise ValueError(f"rollback is {rollback!r}; must be an integer of at least 0")
        self.spare = -(-rollback // BLOCK_TOKENS)
        spec = KVConfig.of(kv, torch.float16)
        if spec.resolved:
            spec.block_bytes(self.shape)  # refuses what this head_dim cannot have
        self.calibration = needed_calibration(calibration, spec, self.shape)
        super().__init__(layers=[])
        self.reset()

    layers: list[PagedCache]  # one each, so that growing one copies one layer's pages
    rows: Rows | None
    owner: Owner
    _v_basis: tuple[Tensor, Tensor] | None  # [layers, kv_heads, D, D], and its inverse
    _step: RowsStep | None
    _done: set[int]
    _announced: bool

    # ---- what transformers asks ------------------------------------------------------------

    is_compileable = False  # pages are chosen in Python: see docs/transformers.md
    is_croppable = False

    @property
    def is_initialized(self) -> bool:
        return self.rows is not None

    @property
    def is_sliding(self) -> list[bool]:
        """Masks of sliding layers are made by the attention, so no layer is special here."""
        return [False] * self.shape.layers

    def __len__(self) -> int:
        return int(self.shape.layers)

    def __repr__(self) -> str:
        return f"SparseCache({str(self.kv)!r}, tokens={self.lengths}, nbytes={self.nbytes})"

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of input so far, padding included."""
        return 0 if self.rows is None else self.rows.seen

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int) -> tuple[int, int]:
        """How long a mask is, and where it begins; before transformers 5.10 with positions."""
        new = query_length if isinstance(query_length, int) else len(query_length)
        return self.get_seq_length() + new, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    get_max_cache_shape = get_max_length

    @property
    def batch_size(self) -> int:
        return -1 if self.rows is None else len(self.rows.lengths)

    max_batch_size = batch_size

    # ---- what is in it -----------------------------------------------------------------------

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, without padding."""
        return [] if self.rows is None else list(self.rows.lengths)

    @property
    def nbytes(self) -> int:
        """Memory of all pages, in bytes."""
        return sum(layer.nbytes for layer in self.layers)

    def expected_nbytes(self) -> int:
        """What the layout's formula gives for these rows; `nbytes` has a little room to grow."""
        if self.rows is None:
            return 0
        return sum(self.rows.ring.nbytes(tokens) for tokens in self.rows.lengths)

    # ---- one forward pass --------------------------------------------------------------------

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Hand new K and V [rows, kv_heads, tokens, head_dim] on to attention, which stores them.

        Raises ValueError for another shape, type or device than the cache has.
        """
        self._check(key_states, value_states, layer_idx)
        if self.rows is None:
            self._allocate(key_states)
        return (
            Handed.of(key_states, self, layer_idx),
            Handed.of(value_states, self, layer_idx),
        )

    def attend(
        self,
        layer: int,
        module: Any,
        query: Tensor,
        keys: tuple[Tensor, Tensor],
        mask: Tensor | None,
        scale: float,
        sliding: int,
    ) -> Tensor:
        """Store K and V of a layer and attend with query [rows, heads, tokens, head_dim].

        Returns [rows, tokens, heads, head_dim].
        """
        self.owner.check(layer, module)
        assert self.rows is not None, "update has allocated it"
        step, pages = self._step_for(layer, query.shape[2], mask), self.layers[layer]
        k, v = keys
        if self._v_basis is not None:
            v = turn(v, self._v_basis[0][layer])
        if query.shape[2] == 1:  # [tokens, heads, D] either way, and this in half the time
            q, k, v = query[:, :, 0], k[:, :, 0], v[:, :, 0]
        else:
            q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, k, v))
        q, k = pages.turn(0, q, k)
        pages.grow(self.rows.table.size)
        if step.ahead is not None:
            tokens, slots = step.ahead
            pages.write(0, k[tokens], v[tokens], slots)
        if step.compress is not None:
            pages.compress(step.compress.dense, step.compress.stored)
        out = pages.attend(0, q, k, v, step.cache, scale, sliding)
        out = out.view(len(query), -1, *out.shape[1:])
        if self._v_basis is None:
            return out
        return turn(out.transpose(1, 2), self._v_basis[1][layer]).transpose(1, 2)

    def _step_for(self, layer: int, columns: int, mask: Tensor | None) -> RowsStep:
        """The plan of this forward pass, made in its first layer."""
        assert self.rows is not None
        if self._step is None:
            new = new_tokens(mask, columns, self.rows.lengths, self.rows.seen)
            self._step, self._done = self.rows.extend(columns, new), set()
            if not self._announced:
                self._announce(self.rows)
        elif layer in self._done:
            raise ValueError(
                f"a forward pass ended before layer {self.shape.layers - 1} had its tokens; "
                "the cache is incomplete: reset() it"
            )
        step = self._step
        self._done.add(layer)
        if len(self._done) == self.shape.layers:
            self._step = None  # the masks of a long prompt are large
        return step

    def _announce(self, rows: Rows) -> None:
        """Not before a block is compressed: shorter runs would only wait for the measurement."""
        if rows.ring.stores.stored_blocks(max(rows.lengths)):
            self._announced = True
            measure_and_log(rows.ring.spec)

    def _check(self, k: Tensor, v: Tensor, layer: int) -> None:
        shape = self.shape
        if not 0 <= layer < shape.layers:
            raise ValueError(f"layer is {layer}; must be 0 to {shape.layers - 1}, as in the config")
        for name, x in (("K", k), ("V", v)):
            if x.dim() != 4 or (x.shape[1], x.shape[3]) != (shape.kv_heads, shape.head_dim):
                raise ValueError(
                    f"{name} of layer {layer} has shape {list(x.shape)}; must be [rows, "
                    f"{shape.kv_heads}, tokens, {shape.head_dim}], as in the config"
                )
        if self.rows is None:
            check_dtype(k.dtype)
            return
        spec, rows = self.rows.ring.spec, len(self.rows.lengths)
        for what, given, own in (
            ("type", k.dtype, spec.dtype),
            ("device", k.device, spec.device),
            ("rows", k.shape[0], rows),
        ):
            if given != own:
                raise ValueError(
                    f"layer {layer} gives K with {what} {given}, and the cache has {own}; make a "
                    "new SparseCache, and keep the model on one device, in one type"
                )

    def _allocate(self, k: Tensor) -> None:
        config = KVConfig.of(self.kv, k.dtype)
        spec = CacheSpec.of(config, self.shape, k.dtype, k.device, self.calibration)
        known, self._v_basis = self.calibration, None
        if known is not None and (basis := known.basis("v", spec.config.v)) is not None:
            # Applied to V and to outputs here: the model's weights stay as they are.
            basis = basis.rounded(k.dtype)
            there, back = (x.to(k.device, k.dtype) for x in (basis.matrix, basis.inverse))
            self._v_basis = there, back
        ring = Ring(spec, self.spare)
        self.rows = Rows(ring, [0] * k.shape[0])
        self.layers = [
            PagedCache(spec.part(slice(layer, layer + 1)), 1, k.shape[0] * ring.pages)
            for layer in range(self.shape.layers)
        ]

    # ---- rows and ends -----------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything, also the model, and give the memory back."""
        known = self.calibration
        sketches = None if known is None else known.manifest.fingerprint.k_sketches
        self.owner = Owner(self.shape.layers, sketches)
        self.rows, self.layers = None, []
        self._step, self._done, self._announced = None, set(), False

    def crop(self, tokens: int) -> None:
        """Take back the last -tokens columns, or (tokens > 0) keep only the first `tokens`.

        Raises ValueError where that would need blocks dense again that are compressed.
        """
        if self.rows is None:
            return
        columns = -tokens if tokens <= 0 else max(0, self.rows.seen - tokens)
        if columns == self.rows.seen:
            self.reset()
        elif columns and (move := self.rows.crop(columns)) is not None:
            for layer in self.layers:
                layer.restore(move.dense, move.stored)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row beam_idx[i] is. Compressed pages are shared, not copied."""
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows only."""
        self._select(torch.arange(self.batch_size)[indices.cpu()].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times."""
        self._select([row for row in range(self.batch_size) for _ in range(repeats)])

    def _select(self, rows: Sequence[int]) -> None:
        if self.rows is None:
            return
        self.rows.select(rows)
        pages, chosen = self.rows.ring.pages, torch.tensor(rows, device=self.rows.device)
        for layer in self.layers:
            pools = {name: layer.pools[name] for name in ("dense_k", "dense_v")}
            layer.replace(
                **{
                    name: pool.unflatten(0, (-1, pages)).index_select(0, chosen).flatten(0, 1)
                    for name, pool in pools.items()
                }
            )

    # ---- files -------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file; see gossamer.integrations.transformers.saving."""
        from gossamer.integrations.transformers.saving import save  # noqa: PLC0415

        save(self, path)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        config: Any,
        *,
        calibration: Calibration | str | PathLike[str] | None = None,
        device: str | torch.device = "cpu",
    ) -> "SparseCache":
        """The cache that `save` wrote, for the model of this config.

        A model with other weights than the one that made it is refused when it uses the cache.
        Raises ValueError for a damaged file, another config or another calibration.
        """
        from gossamer.integrations.transformers.saving import load  # noqa: PLC0415

        cache: SparseCache = load(cls, path, config, calibration, torch.device(device))
        return cache
